"""Published laws that set learning rates and Adam's constants from the size of a run. Pure functions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Hyperparameters:
    """Peak learning rates by optimizer group (None: the law has no such group) and Adam's constants."""

    muonh: float | None
    adamh: float
    adam: float
    beta1: float
    beta2: float
    eps: float


def aug_hero(tokens: int, d_model: int, tokens_per_step: int) -> Hyperparameters:
    """The law of the Marin 535B-A23B run and its ladder, fitted on a sweep of smaller runs (R^2 = .978).

    adam = min(.05, .087571 T^-.3461 d^-.3448 sqrt(tokens per step)); muonh = adamh = min(.05, 13/3 adam);
    beta2 = .999^(tokens per step / 131072) within [.95, .9999]; eps = 9.676e-18 sqrt(steps).

    Args:
        tokens: T, of the whole run.
        d_model: d.
        tokens_per_step: sequences times their length.

    Source: moe_hero_fsdp/heuristic.py@020b7dc3; issues #7856 and #8003. beta1 is that of the launched run,
    .90 (older code: .9062).
    """
    adam = min(0.05, 0.087571 * tokens**-0.3461 * d_model**-0.3448 * math.sqrt(tokens_per_step))
    hyperball = min(0.05, 13 / 3 * adam)
    return Hyperparameters(
        muonh=hyperball,
        adamh=hyperball,
        adam=adam,
        beta1=0.9,
        beta2=_clip(0.999 ** (tokens_per_step / 131072), 0.95, 0.9999),
        eps=9.676e-18 * math.sqrt(tokens / tokens_per_step),
    )


def delphi(tokens: int, d_model: int, tokens_per_step: int) -> Hyperparameters:
    """The law of the Delphi suite, scaled from one tuned run of 2.5B tokens in batches of 64 x 4,096; AdamH and Adam.

    With b and t the batch and the tokens over those of the tuned run: adamh = min(.01, .0063 sqrt(b) t^-.3);
    adam = min(.01, .000656 sqrt(b / t)); eps = 1.85e-8 sqrt(t / b); beta2 = .9999^b within [.9, .9999].

    Args:
        tokens, tokens_per_step: as in `aug_hero`.
        d_model: no effect; the width does not enter.

    Source: experiments/scaling_law_sweeps/completed_adamh.py@054a715f.
    """
    b, t = tokens_per_step / (64 * 4096), tokens / 2.5e9
    return Hyperparameters(
        muonh=None,
        adamh=min(0.01, 0.0063 * math.sqrt(b) * t**-0.3),
        adam=min(0.01, 0.000656 * math.sqrt(b / t)),
        beta1=0.9,
        beta2=_clip(0.9999**b, 0.9, 0.9999),
        eps=1.85e-8 * math.sqrt(t / b),
    )


def _clip(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))


LAWS: Final[dict[str, Callable[[int, int, int], Hyperparameters]]] = {"aug_hero": aug_hero, "delphi": delphi}
