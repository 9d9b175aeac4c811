"""The shape of two curves: how far apart they lie once each is divided by its own level.

Normalised curves of runs that share schedule and tokens per parameter coincide whatever their size; a departure
is a sign of a fault ("Scaling with Collapse", arXiv 2509.25087).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from analysis.bootstrap import block_interval, block_length
from analysis.curves import AXES, axis_values, points
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

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

MOST_DRAWN = 2e7
"""Resamples are limited to 1000 and so that no more than this many points are drawn in all."""


@dataclass(frozen=True)
class Reference:
    """Where the curves are set to one: the mean over `[lo, hi]` of the x axis; `at` is its middle."""

    lo: float
    hi: float

    @property
    def at(self) -> float:
        return (self.lo + self.hi) / 2


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


def curve(run: Run, metric: str, axis: str) -> tuple[Numbers, Numbers]:
    """x and value of the finite logged points.

    Raises:
        InputError: an axis that the run's facts do not give.
    """
    rows = points(run, metric)
    x = axis_values(run, rows, axis)
    if x is None:
        raise InputError(
            f"run {run.name}: {AXES[axis].label} needs {AXES[axis].needs}, which it does not state"
        )
    return x, rows["value"].to_numpy("float64")


def matched(own: Run, public: Run, metric: str, axis: str) -> tuple[Numbers, Numbers, Numbers]:
    """`x, own, public` at own's points inside the overlap; only the public curve is interpolated (linearly).

    Raises:
        InputError: an axis that a run's facts do not give, or curves that do not overlap.
    """
    (x, y), (reference_x, reference_y) = curve(own, metric, axis), curve(public, metric, axis)
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
        `{distance, interval, interval_from, noise, mean_log_ratio, window, reference, n, reason}`; `noise` is s; a
        positive
        `mean_log_ratio` means that own's loss stood higher above its reference level, that is, falls later.
    """
    empty: dict[str, Any] = dict.fromkeys(("distance", "interval", "noise", "mean_log_ratio", "window"), None)
    empty |= {"interval_from": None, "reference": None, "n": 0}
    if reference is None:
        return empty | {
            "reason": f"{AXES[axis].label} needs {AXES[axis].needs}, which one of the runs does not state"
        }
    try:
        x, y, z = matched(own, public, metric, axis)
    except InputError as error:
        return empty | {"reason": str(error)}
    used = (x >= SKIPPED_START * reference.hi) & (x <= reference.hi * (1 + 1e-9)) & (y > 0) & (z > 0)
    used &= ~in_a_coarse_gap(x, *curve(public, metric, axis))
    x, log_ratio = x[used], np.log(y[used] / z[used])
    in_window = x >= reference.lo
    if len(x) < FEWEST_POINTS or not in_window.any():
        return empty | {"n": len(x), "reason": f"only {len(x)} points lie in the common stretch"}
    trend, noise, length = trend_and_noise(log_ratio)
    step_variance = float(np.mean(np.diff(log_ratio) ** 2)) / 2

    def distance(d: Numbers, variance: float = step_variance) -> float:
        return float(np.sqrt(max(0.0, np.mean((d - d[in_window].mean()) ** 2) - variance)))

    estimate, without_noise = distance(log_ratio), distance(trend, 0.0)
    resamples = int(np.clip(MOST_DRAWN / len(x), 100, 1000))
    low, high = block_interval(trend, noise, distance, length, resamples)
    return {
        "distance": estimate,
        "interval": [max(0.0, estimate + without_noise - high), estimate + without_noise - low],
        "interval_from": "block bootstrap",
        "noise": step_variance**0.5,
        "mean_log_ratio": float((log_ratio - log_ratio[in_window].mean()).mean()),
        "window": [float(x[0]), float(x[-1])],
        "reference": reference.at,
        "n": len(x),
        "reason": "the loss of one run never changes: check its log" if 0 in (np.ptp(y), np.ptp(z)) else None,
    }


def in_a_coarse_gap(x: Numbers, reference_x: Numbers, reference_y: Numbers) -> NDArray[np.bool_]:
    """Which x lie strictly between two points of a positive reference that falls by more than `COARSE` over them:
    nothing is interpolated there."""
    index = (
        np.clip(np.searchsorted(reference_x, x), 1, len(reference_x) - 1) if len(reference_x) > 1 else None
    )
    if index is None:
        return np.zeros(len(x), bool)
    steep = reference_y[index - 1] - reference_y[index] > COARSE * reference_y[index]
    return np.asarray(steep & (x > reference_x[index - 1]) & (x < reference_x[index]), bool)


def trend_and_noise(y: Numbers) -> tuple[Numbers, Numbers, int]:
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


def seed_interval(values: list[float], level: float = 0.95) -> tuple[float, float, list[float]]:
    """Mean, standard deviation and Student's interval of the mean over runs that differ in their seed only."""
    n, mean, spread = len(values), float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(student.ppf((1 + level) / 2, n - 1)) * spread / n**0.5
    return mean, spread, [mean - half, mean + half]


def same_but_for_the_seed(runs: list[Run]) -> list[list[Run]]:
    """Groups of at least two runs whose facts agree in all but seed, title and experiment's name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.facts.seed is not None and run.facts.tokens_per_step is not None:
            key = run.facts.model_dump_json(exclude={"seed", "title", "experiment"})
            groups.setdefault(key, []).append(run)
    return [group for group in groups.values() if len({run.facts.seed for run in group}) == len(group) > 1]
