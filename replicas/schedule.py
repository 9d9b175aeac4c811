"""Learning rate over a run: the peak's multiplier as a pure function of the zero-based optimizer step."""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

Schedule = Callable[[int], float]


def linear(step: int, total_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Up from 0 over `warmup_steps`, then a straight line to `final_fraction` at `total_steps`.

    The published shape of the Marin 535B-A23B run (moe_hero_fsdp/heuristic.py@020b7dc3).
    """
    if step < warmup_steps:
        return step / warmup_steps
    return 1 - (1 - final_fraction) * _progress(step, warmup_steps, total_steps)


def cosine(step: int, total_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Up from 0, then half a cosine from 1 to `final_fraction` (Loshchilov & Hutter, arXiv 1608.03983)."""
    if step < warmup_steps:
        return step / warmup_steps
    wave = (1 + math.cos(math.pi * _progress(step, warmup_steps, total_steps))) / 2
    return final_fraction + (1 - final_fraction) * wave


def wsd(step: int, total_steps: int, warmup_steps: int, final_fraction: float, decay_steps: int) -> float:
    """Warm-up, stable, decay: up from 0, held at 1, straight to `final_fraction` over the last `decay_steps`.

    MiniCPM, arXiv 2404.06395, with the linear decay of the Delphi runs.
    """
    if step < warmup_steps:
        return step / warmup_steps
    decay_from = max(warmup_steps, total_steps - decay_steps)
    return 1 - (1 - final_fraction) * _progress(step, decay_from, total_steps)


def constant(step: int, total_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Up from 0, then the peak; `total_steps` and `final_fraction` have no effect."""
    return step / warmup_steps if step < warmup_steps else 1.0


def inverse_sqrt(step: int, total_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Up from 0, then sqrt(warmup / step), at least `final_fraction` (Vaswani et al., arXiv 1706.03762)."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(final_fraction, math.sqrt(max(1, warmup_steps) / max(1, step)))


def learning_rate_schedule(
    shape: str,
    total_steps: int,
    warmup_fraction: float,
    final_fraction: float,
    decay_fraction: float | None = None,
) -> Schedule:
    """The multiplier of the peak learning rate at each zero-based step, e.g. for `LambdaLR`.

    Args:
        shape: a name in `SHAPES`.
        total_steps: optimizer steps of the run; the multiplier stays at its end value beyond.
        warmup_fraction: of `total_steps`, rounded down to whole steps.
        final_fraction: of the peak, at the end.
        decay_fraction: of `total_steps`, rounded, for `wsd`.
    """
    arguments = {
        "total_steps": total_steps,
        "warmup_steps": warmup_steps(total_steps, warmup_fraction),
        "final_fraction": final_fraction,
    }
    if decay_fraction is not None:
        arguments["decay_steps"] = round(decay_fraction * total_steps)
    return partial(SHAPES[shape], **arguments)


def warmup_steps(total_steps: int, warmup_fraction: float) -> int:
    """Whole steps of the warm-up, int(fraction * steps) as published."""
    return int(warmup_fraction * total_steps)


def _progress(step: int, first: int, last: int) -> float:
    """How far `step` is from `first` to `last`, within [0, 1]."""
    return min(1.0, max(0.0, (step - first) / max(1, last - first)))


SHAPES: Final[dict[str, Callable[..., float]]] = {
    "linear": linear,
    "cosine": cosine,
    "wsd": wsd,
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
}
