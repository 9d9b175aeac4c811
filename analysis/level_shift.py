"""How many more tokens, and how much more compute, one run needs to the loss of another.

A horizontal distance needs levels that mean the same on both sides, so it is read on a shared evaluation of the
same text, else on the training loss of runs with the same data and tokenizer, and otherwise refused. In the
normal form of `analysis.shape` it can be read for any pair, as the fraction of the schedule at which the public
run stood as far above its own end.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from analysis.bootstrap import moving_blocks
from analysis.curves import has_metric, points
from analysis.ledger import levels_differ
from analysis.shape import COARSE, Reference, curve, reference_level, trend_and_noise
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

LOSS = "train/loss"

RESAMPLES = 400

FEWEST_FOR_BOOTSTRAP = 40
"""With fewer public points near the level the interval is that between the neighbouring points."""

WINDOW = 600
"""Public points to either side of the level that are drawn anew for the interval."""


@dataclass(frozen=True)
class Crossing:
    """Where a falling curve comes down to a level; `between` are the logged points around it."""

    at: float
    between: tuple[float, float]


def crossing(x: Numbers, y: Numbers, level: float) -> Crossing | None:
    """Where `y` comes down to `level`, read off the falling curve closest to the points (isotonic regression).

    On a curve that falls throughout this is linear interpolation; on a noisy one it does not take the first point
    that happens to dip below. None if the curve begins below the level, never reaches it, or falls by more than
    `COARSE` of it between the two points around it.
    """
    if len(y) < 2:
        return None
    fitted = isotonic_regression(y, increasing=False)
    starts = fitted.blocks[:-1]
    sizes = np.diff(fitted.blocks)
    height, middle = fitted.x[starts], np.add.reduceat(x, starts) / sizes
    below = np.flatnonzero(height <= level)
    if not len(below) or below[0] == 0:
        return None
    i = int(below[0])
    if height[i - 1] - height[i] > COARSE * level or not np.isfinite(middle[i - 1 : i + 1]).all():
        return None
    share = (height[i - 1] - level) / (height[i - 1] - height[i])
    lo, hi = float(middle[i - 1]), float(middle[i])
    return Crossing(lo + share * (hi - lo), (lo, hi))


def level_shift(
    own: Run, public: Run, rows: list[dict[str, Any]]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None, tuple[str | None, str | None]]:
    """Token shift and compute ratio at own's last loss, with the reasons where they are None.

    Own's loss and tokens are means over its last 5 % of points. The shift's `ratio` is own's tokens over the
    public run's at that loss; the compute ratio is the public run's FLOPs over own's: above 1, own needed less.
    """
    metric, reason = _level_metric(own, public, rows)
    if metric is None:
        return None, None, (reason, reason)
    a, b = points(own, metric), points(public, metric)
    x, y = b["tokens"].to_numpy("float64"), b["value"].to_numpy("float64")
    tail = a.tail(max(1, len(a) // 20))
    level, own_tokens = float(tail["value"].mean()), float(tail["tokens"].mean())
    found = crossing(x, y, level)
    if not np.isfinite(own_tokens) or found is None:
        reason = _no_shift(own, public, level, own_tokens, x, y)
        return None, None, (reason, reason)
    (low, high), source = _token_interval(a["value"].to_numpy("float64"), len(tail), x, y, level, found)
    shift = {
        "metric": metric,
        "loss": level,
        "own_tokens": own_tokens,
        "public_tokens": found.at,
        "tokens": own_tokens - found.at,
        "ratio": own_tokens / found.at,
        "interval": [own_tokens / high, own_tokens / low],
        "interval_from": source,
    }
    costs = (own.facts.train_flops_per_token, public.facts.train_flops_per_token)
    if costs[0] is None or costs[1] is None:
        return shift, None, (None, "training FLOPs per token are not stated for both runs")
    per_token = costs[1] / costs[0]
    compute = {
        "metric": metric,
        "loss": level,
        "own_flops": own_tokens * costs[0],
        "public_flops": found.at * costs[1],
        "ratio": found.at / own_tokens * per_token,
        "interval": [low / own_tokens * per_token, high / own_tokens * per_token],
        "interval_from": source,
    }
    return shift, compute, (None, None)


def _no_shift(own: Run, public: Run, level: float, own_tokens: float, x: Numbers, y: Numbers) -> str:
    for run, tokens in ((own, own_tokens), (public, float(x.max(initial=-np.inf)))):
        if not np.isfinite(tokens):
            return f"tokens of {run.name} are not known: state them with `maquette logs ingest --tokens-per-step N`"
    if y[0] <= level:
        return (
            f"the log of {public.name} begins at {y[0]:.4g}, already below the loss {level:.4g} of {own.name}"
        )
    if y.min() > level:
        return f"{public.name} does not come down to the loss {level:.4g} of {own.name} inside its log"
    return f"{public.name} passes the loss {level:.4g} of {own.name} too steeply between two logged points to say where"


def _token_interval(
    own: Numbers, tail: int, x: Numbers, y: Numbers, level: float, found: Crossing
) -> tuple[tuple[float, float], str]:
    """95 % interval of the public run's tokens at own's loss: blocks of both logs' noise drawn anew, but never
    narrower than what one logged point could shift; with few points the logged ones around the level."""
    centre = int(np.searchsorted(x, found.at))
    near = slice(max(0, centre - WINDOW), centre + WINDOW)
    x, y = x[near], y[near]
    if len(x) < FEWEST_FOR_BOOTSTRAP or len(own) < FEWEST_FOR_BOOTSTRAP:
        return found.between, "the logged points around that loss"
    trend, noise, length = trend_and_noise(y)
    _, own_noise, own_length = trend_and_noise(own[-max(FEWEST_FOR_BOOTSTRAP, 4 * tail) :])
    own_length = min(own_length, tail)
    noise, own_noise = noise - noise.mean(), own_noise - own_noise.mean()
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        shaken = trend + noise[moving_blocks(len(noise), length, len(trend), rng)]
        lift = float(own_noise[moving_blocks(len(own_noise), own_length, tail, rng)].mean())
        again = crossing(x, shaken, level + lift)
        if again is not None:
            drawn.append(again.at)
    if len(drawn) < 0.9 * RESAMPLES:
        return found.between, "the logged points around that loss"
    low, high = np.quantile(drawn, [0.025, 0.975])
    return (min(float(low), found.at), max(float(high), found.at)), "block bootstrap"


def _level_metric(own: Run, public: Run, rows: list[dict[str, Any]]) -> tuple[str | None, str]:
    if not levels_differ(rows, ("evaluation set", "tokenizer")):
        for metric in own.metrics:
            if (
                metric.startswith("eval/")
                and metric.endswith("/loss")
                and has_metric(own, metric)
                and has_metric(public, metric)
            ):
                return metric, ""
    aspects = (
        "training data",
        "data version",
        "tokenizer",
        "z-loss inside the logged loss",
        "unit of the loss",
    )
    different = levels_differ(rows, aspects)
    if not different and has_metric(own, LOSS) and has_metric(public, LOSS):
        return LOSS, ""
    return None, (
        "the same loss would not mean the same thing: the runs share no evaluation on the same text and "
        f"tokenizer, and differ (or are not known to agree) in {', '.join(different) or 'what they log'}"
    )


def progress_shift(
    own: Run, public: Run, metric: str, axis: str, reference: Reference | None
) -> list[dict[str, float | None]]:
    """For a quarter, half and three quarters of the common stretch: own's loss above its end there, and where the
    public run stood as far above its own: `{own, relative_loss, public, ratio}` in units of `axis`.

    A `ratio` above 1 says that own came down later. `public` is None where its curve does not show it.
    """
    if reference is None:
        return []
    levels = [reference_level(run, metric, axis, reference) for run in (own, public)]
    if levels[0] is None or levels[1] is None:
        return []
    try:
        (x, y), (public_x, public_y) = curve(own, metric, axis), curve(public, metric, axis)
    except InputError:
        return []
    found: list[dict[str, float | None]] = []
    for share in (0.25, 0.5, 0.75):
        at = share * reference.hi
        near = np.abs(x - at) <= 0.025 * reference.hi
        if not near.any():
            continue
        relative = float(y[near].mean()) / levels[0]
        where = crossing(public_x, public_y / levels[1], relative)
        middle = float(x[near].mean())
        found.append(
            {
                "own": middle,
                "relative_loss": relative,
                "public": where.at if where else None,
                "ratio": middle / where.at if where else None,
            }
        )
    return found
