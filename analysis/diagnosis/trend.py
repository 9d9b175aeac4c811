"""A logged curve, its trend and its noise, both robust: running medians over a window of tokens.

A running median gives back a monotone curve unchanged, so a falling loss is not mistaken for an excursion, and
it jumps where the curve jumps, so a level step is not smeared (Tukey, Exploratory Data Analysis, 1977).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.indexers import BaseIndexer
from scipy.ndimage import median_filter

from analysis.curves import has_metric, points
from experiments.configuration import InputError
from logs.schema import Run, Segment

Numbers = NDArray[np.float64]

WINDOW_SHARE = 0.01
"""Window of the trend as a share of the tokens logged: spikes last some hundred steps of some hundred thousand."""

WINDOW_POINTS = 128
"""Points that the window holds at the usual distance, at least: the window of the 6-sigma score."""

MOST_OF_LOG = 0.1
"""Share of a short log that the window takes at most, whatever it should hold: a trend must bend."""

LEAST_POINTS = 17
"""Points that a window has wherever the log is sparse; the median of fewer is as noisy as the points."""

MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


@dataclass(frozen=True)
class Curve:
    """The finite points of one metric, sorted by step.

    Attributes:
        x: tokens seen, or steps done where tokens are unknown; `axis` says which.
        stride: usual distance of two logged points in steps.
    """

    metric: str
    step: NDArray[np.int64]
    x: Numbers
    axis: str
    value: Numbers

    def __len__(self) -> int:
        return len(self.step)

    @property
    def stride(self) -> int:
        return int(np.median(np.diff(self.step))) if len(self) > 1 else 1

    @cached_property
    def window(self) -> float:
        """Width of the trend's window in units of `x`."""
        if len(self) < 2:
            return 1.0
        span, distance = float(self.x[-1] - self.x[0]), float(np.median(np.diff(self.x)))
        return max(WINDOW_SHARE * span, min(WINDOW_POINTS * distance, MOST_OF_LOG * span))

    @cached_property
    def trend(self) -> Numbers:
        """Running median over `window`."""
        start, end = _bounds(self.x, self.window, LEAST_POINTS)
        ahead = np.arange(len(self))
        start = np.maximum(start, 2 * ahead + 1 - end)  # as many points before as after, except at the end:
        end = np.minimum(end, np.where(end < len(self), 2 * ahead + 1 - start, end))  # there only older ones
        return running_median(self.value, start, end)

    @cached_property
    def noise(self) -> Numbers:
        """Local standard deviation around the trend, from running medians of absolute deviations.

        The larger of two: around the trend, and of each point from the line between its neighbours (Gasser,
        Sroka and Jennen-Steinmetz, Biometrika 73, 1986), for where the curve falls faster than it scatters a
        running median follows every point. Never below what rounding in the log or in float32 makes.
        """
        start, end = _bounds(self.x, self.window, 4 * LEAST_POINTS)
        deviations = (np.abs(self.value - self.trend), np.abs(_pseudo_residuals(self.x, self.value)))
        local = MAD_TO_SIGMA * np.maximum(*(running_median(d, start, end) for d in deviations))
        return np.maximum(local, np.maximum(resolution(self.value), 1e-6 * np.abs(self.trend)) + 1e-300)

    @cached_property
    def z(self) -> Numbers:
        """Residual from the trend over the local noise."""
        return (self.value - self.trend) / self.noise


class _Windows(BaseIndexer):
    """Windows given as first and past-the-last index of each point."""

    def __init__(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        super().__init__()
        self.start, self.end = start, end

    def get_window_bounds(
        self,
        num_values: int = 0,
        min_periods: int | None = None,
        center: bool | None = None,
        closed: str | None = None,
        step: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.start, self.end


def running_median(value: Numbers, start: NDArray[np.int64], end: NDArray[np.int64]) -> Numbers:
    """Median of `value[start[i]:end[i]]` for each i; both bounds are made to ascend, which keeps it fast.

    Where the windows are centred and of one width, which in a regular log is all but its ends, a filter of that
    width gives the same medians ten times as fast.
    """
    start, end = np.maximum.accumulate(start), np.maximum.accumulate(end)
    first, last = _of_one_width(start, end)
    result = np.empty(len(value))
    if last > first:
        width = int(end[first] - start[first])
        lo, hi = int(start[first]), int(end[last - 1])
        filtered = median_filter(value[lo:hi], size=width, mode="nearest")
        result[first:last] = filtered[first - lo : last - lo]
    for at in (slice(0, first), slice(last, len(value))):
        if at.start < at.stop:
            lo, hi = int(start[at][0]), int(end[at][-1])
            windows = _Windows(start[at] - lo, end[at] - lo)
            result[at] = _medians(value[lo:hi], windows, at.stop - at.start)
    return result


def _medians(value: Numbers, windows: "_Windows", count: int) -> Numbers:
    """Medians of the first `count` windows over `value`, which may have more points than there are windows."""
    spare = len(value) - count
    last = np.full(spare, len(value))
    padded = _Windows(np.append(windows.start, last - 1), np.append(windows.end, last))
    return pd.Series(value).rolling(padded, min_periods=1).median().to_numpy()[:count]


def _of_one_width(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[int, int]:
    """The stretch of indices around the middle one whose windows are centred and as wide as its own."""
    if len(start) == 0:
        return 0, 0
    at = np.arange(len(start))
    middle = len(start) // 2
    half = int(end[middle] - middle - 1)
    alike = (at - start == half) & (end - at - 1 == half)
    if not alike[middle]:
        return 0, 0
    other = np.flatnonzero(~alike)
    before, after = other[other < middle], other[other > middle]
    return int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else len(start)


def centred_median(value: Numbers, half: int) -> Numbers:
    """Median of the points up to `half` before and after each; fewer at the ends."""
    at = np.arange(len(value))
    return running_median(value, np.maximum(at - half, 0), np.minimum(at + half + 1, len(value)))


def _pseudo_residuals(x: Numbers, value: Numbers) -> Numbers:
    """Distance of each point from the line between its neighbours, scaled to the variance of the noise; at the
    ends that of the next point."""
    if len(x) < 3:
        return np.zeros(len(x))
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    inner = value[1:-1] - (1 - share) * value[:-2] - share * value[2:]
    return np.pad(inner / np.sqrt(1 + share**2 + (1 - share) ** 2), 1, mode="edge")


def _bounds(x: Numbers, width: float, least: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The window of each point: `width` around it, and `least` points where that is more."""
    at = np.arange(len(x))
    start = np.minimum(np.searchsorted(x, x - width / 2), at - least // 2)
    end = np.maximum(np.searchsorted(x, x + width / 2, side="right"), at + least // 2 + 1)
    return np.maximum(start, 0), np.minimum(end, len(x))


def resolution(value: Numbers) -> float:
    """The smallest distance of two different values of a rounded log, e.g. 1e-4; near 0 where not rounded."""
    distance = np.diff(np.unique(value))
    return float(distance.min()) if len(distance) else 0.0


def curve_of(run: Run, metric: str) -> Curve | None:
    """The finite points of `metric`, or None if there are none."""
    try:
        rows = points(run, metric)
    except InputError:  # not logged, or never finite
        return None
    tokens = rows["tokens"].to_numpy("float64")
    known = bool(np.isfinite(tokens).all()) and bool((np.diff(tokens) > 0).all())
    x = tokens if known else rows["done"].to_numpy("float64")
    return Curve(
        metric, rows["step"].to_numpy("int64"), x, "tokens" if known else "steps", rows["value"].to_numpy()
    )


def first_metric(run: Run, names: tuple[str, ...]) -> str | None:
    """The first of `names` of which the run logged a finite value."""
    return next((name for name in names if has_metric(run, name)), None)


def flattened(run: Run) -> Run:
    """`run` with its lineage as the table, so that each metric need not work it out again."""
    table = run.lineage()
    if not len(table):
        return run
    first, last = int(table["step"].iloc[0]), int(table["step"].iloc[-1])
    return replace(run, table=table, segments=(Segment(id=run.name, first_step=first, last_step=last),))


def block_medians(curve: Curve, blocks: int) -> tuple[Numbers, Numbers]:
    """Medians of the value and of x in `blocks` stretches of equally many points."""
    bounds = np.linspace(0, len(curve), min(blocks, len(curve)) + 1).astype(int)
    pairs = list(pairwise(bounds))
    values = np.array([np.median(curve.value[lo:hi]) for lo, hi in pairs])
    return values, np.array([np.median(curve.x[lo:hi]) for lo, hi in pairs])
