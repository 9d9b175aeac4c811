"""Own runs over a public run at matched progress: what agrees in shape, and what may not be compared."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import find_peaks

from analysis.bootstrap import block_interval, block_length
from analysis.curves import AXES, axis_values, has_metric, points
from analysis.ledger import ledger, levels_differ
from analysis.schedule import recover_schedule
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

LOSS = "train/loss"
SKIPPED_START = 0.04
"""Share of the common stretch left out at its start. With a public run that is half done this is 2 % of the
schedule, twice the published warm-up: up to there the loss is governed by ln(vocabulary) and, in a short run,
by a handful of steps."""

REFERENCE_SHARE = 0.05
"""The curves are divided by their geometric mean over this last share of the stretch that all runs cover."""

FEWEST_POINTS = 8
"""Fewer matched points than this give no distance: its interval would mean nothing."""


COARSE = 0.1
"""A public curve that falls by more than this share between two logged points is not interpolated there."""


@dataclass(frozen=True)
class Reference:
    """Where the curves are set to one: the mean over `[lo, hi]` of the x axis; `at` is its middle."""

    lo: float
    hi: float

    @property
    def at(self) -> float:
        return (self.lo + self.hi) / 2


def compare(own: list[Run], public: Run) -> dict[str, Any]:
    """Compare each of `own` with `public`: the `pairs` of `maquette compare --json`.

    Raises:
        InputError: no run is given, one is given twice, or the runs have no loss in common.
    """
    if not own:
        raise InputError("give at least one own run to compare")
    seen = {public.name}
    for run in own:
        if run.name in seen:
            twice = "both own and public" if run.name == public.name else "twice"
            raise InputError(f"{run.name} is given {twice}; a comparison needs different runs")
        seen.add(run.name)
    metric = shared_loss([*own, public])
    reference = common_reference([*own, public], metric, "fraction")
    return {
        "public": public.name,
        "metric": metric,
        "reference_fraction": reference.at if reference else None,
        "reference_window": [reference.lo, reference.hi] if reference else None,
        "pairs": [compare_pair(run, public, metric, reference) for run in own],
        "report": None,
    }


def shared_loss(runs: list[Run]) -> str:
    """The loss that all runs log: `train/loss`, else a shared evaluation loss.

    Raises:
        InputError: there is none.
    """
    for metric in [
        LOSS,
        *sorted(m for m in runs[0].metrics if m.startswith("eval/") and m.endswith("/loss")),
    ]:
        if all(has_metric(run, metric) for run in runs):
            return metric
    logged = "; ".join(f"{run.name} logs {', '.join(run.metrics)}" for run in runs)
    raise InputError(f"the runs have no loss in common: {logged}")


def compare_pair(own: Run, public: Run, metric: str, reference: Reference | None) -> dict[str, Any]:
    """One pair; `reasons` says in words why a value is null."""
    rows = ledger(own, public)
    fraction = shape_distance(own, public, metric, "fraction", reference)
    per_parameter_reference = common_reference([own, public], metric, "tokens_per_parameter")
    per_parameter = shape_distance(own, public, metric, "tokens_per_parameter", per_parameter_reference)
    shift, compute, reason = level_shift(own, public, rows)
    return {
        "own": own.name,
        "public": public.name,
        "shape_distance": fraction["distance"],
        "interval": fraction["interval"],
        "shape": {"fraction": fraction, "tokens_per_parameter": per_parameter},
        "token_shift": shift,
        "compute_ratio": compute,
        "reasons": {
            "shape_distance": fraction["reason"],
            "token_shift": reason[0],
            "compute_ratio": reason[1],
        },
        "grad_norm_landmarks": {"own": grad_norm_landmarks(own), "public": grad_norm_landmarks(public)},
        "schedule": {"own": recover_schedule(own), "public": recover_schedule(public)},
        "ledger": rows,
    }


def common_reference(runs: list[Run], metric: str, axis: str) -> Reference | None:
    """The last `REFERENCE_SHARE` of the stretch of `axis` that `metric` of every run covers, or None."""
    ends = []
    for run in runs:
        x = axis_values(run, points(run, metric), axis)
        if x is None:
            return None
        ends.append(float(x[-1]))
    hi = min(ends)
    return Reference((1 - REFERENCE_SHARE) * hi, hi)


def reference_level(run: Run, metric: str, axis: str, reference: Reference) -> float | None:
    """Geometric mean of `metric` over the reference window, or None without a point in it."""
    rows = points(run, metric)
    x = axis_values(run, rows, axis)
    if x is None:
        return None
    inside = rows["value"].to_numpy()[(x >= reference.lo) & (x <= reference.hi * (1 + 1e-9))]
    return float(np.exp(np.log(inside).mean())) if len(inside) and (inside > 0).all() else None


def matched(own: Run, public: Run, metric: str, axis: str) -> tuple[Numbers, Numbers, Numbers]:
    """`x, own, public` at own's points inside the overlap; only the public curve is interpolated (linearly).

    Raises:
        InputError: an axis that a run's facts do not give, or curves that do not overlap.
    """
    curves = []
    for run in (own, public):
        rows = points(run, metric)
        x = axis_values(run, rows, axis)
        if x is None:
            raise InputError(
                f"run {run.name}: {AXES[axis].label} needs {AXES[axis].needs}, which it does not state"
            )
        curves.append((x, rows["value"].to_numpy("float64")))
    (x, y), (reference_x, reference_y) = curves
    inside = (x >= reference_x[0]) & (x <= reference_x[-1] * (1 + 1e-9))
    if not inside.any():
        raise InputError(
            f"{own.name} covers {x[0]:.3g} to {x[-1]:.3g} of {AXES[axis].label}, {public.name} "
            f"{reference_x[0]:.3g} to {reference_x[-1]:.3g}: the curves do not overlap"
        )
    return x[inside], y[inside], np.interp(x[inside], reference_x, reference_y)


def shape_distance(
    own: Run, public: Run, metric: str, axis: str, reference: Reference | None
) -> dict[str, Any]:
    """How far apart the two losses lie once each is divided by its level in the reference window.

    With d(x) = log own(x) - log public(x), minus its mean over the window, taken at own's points from
    `SKIPPED_START` of the common stretch to its end, the distance is sqrt(mean d^2 - s^2): .10 means that the
    curves differ by about 10 %. s^2, half the mean squared step of d, is the variance that step-to-step noise
    adds (von Neumann 1941). The interval is a basic moving-block bootstrap of own's noise about a running mean
    of d, which serves only to tell noise from trend; d itself is never smoothed, and the public curve is taken
    as it is.

    Returns:
        `{distance, interval, noise, mean_log_ratio, window, reference, n, reason}`; `noise` is s; a positive
        `mean_log_ratio` means that own's loss stood higher above its reference level, that is, falls later.
    """
    empty: dict[str, Any] = dict.fromkeys(("distance", "interval", "noise", "mean_log_ratio", "window"), None)
    empty |= {"reference": None, "n": 0}
    if reference is None:
        return empty | {
            "reason": f"{AXES[axis].label} needs {AXES[axis].needs}, which one of the runs does not state"
        }
    try:
        x, y, z = matched(own, public, metric, axis)
    except InputError as error:
        return empty | {"reason": str(error)}
    used = (x >= SKIPPED_START * reference.hi) & (x <= reference.hi * (1 + 1e-9)) & (y > 0) & (z > 0)
    x, log_ratio = x[used], np.log(y[used] / z[used])
    in_window = x >= reference.lo
    if len(x) < FEWEST_POINTS or not in_window.any():
        return empty | {"n": len(x), "reason": f"only {len(x)} points lie in the common stretch"}
    trend, noise, length = _trend_and_noise(log_ratio)
    step_variance = float(np.mean(np.diff(log_ratio) ** 2)) / 2

    def distance(d: Numbers, variance: float = step_variance) -> float:
        return float(np.sqrt(max(0.0, np.mean((d - d[in_window].mean()) ** 2) - variance)))

    estimate, without_noise = distance(log_ratio), distance(trend, 0.0)
    low, high = block_interval(trend, noise, distance, length)
    return {
        "distance": estimate,
        "interval": [max(0.0, estimate + without_noise - high), estimate + without_noise - low],
        "noise": step_variance**0.5,
        "mean_log_ratio": float((log_ratio - log_ratio[in_window].mean()).mean()),
        "window": [float(x[0]), float(x[-1])],
        "reference": reference.at,
        "n": len(x),
        "reason": "the loss of one run never changes: check its log" if 0 in (np.ptp(y), np.ptp(z)) else None,
    }


def _trend_and_noise(y: Numbers) -> tuple[Numbers, Numbers, int]:
    """Centred mean over a tenth of the points (fewer near the ends), the residuals where it is whole, and the
    length of block in which to draw them.

    Sums of b residuals about a mean of w points that holds them vary by a factor 1 - b/w too little; the residuals
    are scaled to make up for it, and blocks are kept to half of w.
    """
    reach = max(2, len(y) // 20)
    width = 2 * reach + 1
    total = np.concatenate([[0.0], np.cumsum(y)])
    index = np.arange(len(y))
    half = np.minimum(reach, np.minimum(index, len(y) - 1 - index))
    trend = (total[index + half + 1] - total[index - half]) / (2 * half + 1)
    noise = (y - trend)[half == reach]
    length = min(block_length(noise), width // 2)
    return trend, noise / np.sqrt(1 - length / width), length


def level_shift(
    own: Run, public: Run, rows: list[dict[str, Any]]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None, tuple[str | None, str | None]]:
    """Token shift and compute ratio at own's last loss, with the reasons where they are None.

    Levels are read on an evaluation that both log on the same set with the same tokenizer, else on the
    training loss when data and tokenizer are the same; anything else would compare different texts.
    The public run's tokens are read where its curve first comes down to own's loss (linear interpolation).
    """
    metric, reason = _level_metric(own, public, rows)
    if metric is None:
        return None, None, (reason, reason)
    a, b = points(own, metric), points(public, metric)
    tail = max(1, len(a) // 20)
    level = float(a["value"].tail(tail).mean())
    own_tokens = float(a["tokens"].tail(tail).mean())
    public_tokens = _first_reaches(b["tokens"].to_numpy("float64"), b["value"].to_numpy("float64"), level)
    if not np.isfinite(own_tokens) or public_tokens is None:
        reason = (
            f"{public.name} does not pass the loss {level:.4g} of {own.name} inside its log, or too steeply "
            "between two logged points, or tokens are not known"
        )
        return None, None, (reason, reason)
    shift = {
        "metric": metric,
        "loss": level,
        "own_tokens": own_tokens,
        "public_tokens": public_tokens,
        "tokens": own_tokens - public_tokens,
        "ratio": own_tokens / public_tokens,
    }
    costs = (own.facts.train_flops_per_token, public.facts.train_flops_per_token)
    if costs[0] is None or costs[1] is None:
        return shift, None, (None, "training FLOPs per token are not stated for both runs")
    compute = {
        "metric": metric,
        "loss": level,
        "own_flops": own_tokens * costs[0],
        "public_flops": public_tokens * costs[1],
        "ratio": public_tokens * costs[1] / (own_tokens * costs[0]),
    }
    return shift, compute, (None, None)


def _level_metric(own: Run, public: Run, rows: list[dict[str, Any]]) -> tuple[str | None, str]:
    if not levels_differ(rows, ("evaluation set", "tokenizer")):
        shared = [
            m for m in own.metrics if m.startswith("eval/") and m.endswith("/loss") and has_metric(public, m)
        ]
        if shared and has_metric(own, shared[0]):
            return shared[0], ""
    different = levels_differ(
        rows, ("training data", "data version", "tokenizer", "z-loss inside the logged loss")
    )
    if not different:
        return LOSS, ""
    return None, (
        "the same loss would not mean the same thing: the runs share no evaluation on the same text and "
        f"tokenizer, and differ (or are not known to agree) in {', '.join(different)}"
    )


def _first_reaches(x: Numbers, y: Numbers, level: float) -> float | None:
    """x at which the sampled curve first comes down to `level`, or None if it starts below, never does, or is
    sampled so coarsely there that it falls by more than `COARSE` of the level between two points."""
    below = np.flatnonzero(y <= level)
    if not len(below) or below[0] == 0 or not np.isfinite(x[below[0] - 1 : below[0] + 1]).all():
        return None
    i = int(below[0])
    if y[i - 1] - y[i] > COARSE * level:
        return None
    share = (y[i - 1] - level) / (y[i - 1] - y[i])
    return float(x[i - 1] + share * (x[i] - x[i - 1]))


def grad_norm_landmarks(run: Run, bins: int = 40) -> dict[str, Any]:
    """First peak, minimum and late level of the gradient norm, and the steps and fractions where they fall.

    Read off medians in `bins` logarithmic bins of steps done, so that neither single steps nor uneven
    sampling decide; the first peak must stand 10 % above what surrounds it. The late level is the median
    of the last tenth of what is logged.
    """
    landmarks: dict[str, Any] = {"first_peak": None, "minimum": None, "late_level": None, "reason": None}
    if not has_metric(run, "grad_norm"):
        return landmarks | {"reason": "the log has no gradient norm"}
    rows = points(run, "grad_norm")
    done, norm = rows["done"].to_numpy("float64"), rows["value"].to_numpy("float64")
    if len(norm) < FEWEST_POINTS or np.ptp(norm) == 0 or (norm <= 0).any():
        return landmarks | {"reason": "the gradient norm has too few, constant or non-positive points"}
    edges = np.geomspace(done[0], done[-1] * (1 + 1e-9), bins + 1)
    parts = [(done >= lo) & (done < hi) for lo, hi in pairwise(edges)]
    at = np.array([np.median(done[part]) for part in parts if part.any()])
    level = np.array([np.median(norm[part]) for part in parts if part.any()])
    peaks, _ = find_peaks(np.log(np.concatenate([[level.min()], level])), prominence=np.log(1.1))
    first = int(peaks[0]) - 1 if len(peaks) else 0
    lowest = first + int(np.argmin(level[first:]))
    late = done > done[-1] - 0.1 * (done[-1] - done[0])

    def landmark(value: float, steps_done: float) -> dict[str, Any]:
        planned = run.facts.steps_planned
        return {
            "value": float(value),
            "step": round(float(steps_done)) - 1,
            "fraction": float(steps_done / planned) if planned else None,
        }

    return {
        "first_peak": landmark(level[first], at[first]),
        "minimum": landmark(level[lowest], at[lowest]),
        "late_level": landmark(np.median(norm[late]), np.median(done[late])),
        "reason": None,
    }
