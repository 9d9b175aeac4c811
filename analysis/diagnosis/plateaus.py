"""A loss that no longer falls, and one that swings instead of falling."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve, block_medians

FEWEST = 40
"""Points below which quarters of a log say nothing."""

LOW_LR = 0.1
"""Share of its peak below which a learning rate is spent: a loss that rests then has merely arrived."""

SWINGS = 0.5
"""Correlation of the residual with itself one period later: at .5 half its variance is the swing."""

NOISIER = 3.0
"""Factor by which the scatter grows from the quietest tenth of the log to a later one."""

MATERIAL, LARGE = 0.01, 0.05
"""Amplitude as a share of the loss: below the first it is nothing, below the second it may well be the data's own
rhythm and takes nothing from the trend."""


def plateau(curve: Curve, lr: Curve | None) -> Finding | None:
    """The level of the last quarter of the log is not below that of the quarter before.

    Not said where the learning rate is spent at the end, and not of a loss that rises (that is divergence).
    """
    if len(curve) < FEWEST:
        return None
    levels, _ = block_medians(curve, 4)
    if lr is not None and lr.value[-1] < LOW_LR * lr.value.max():
        return None
    error = 1.25 * np.median(curve.noise) * np.sqrt(8 / len(curve))  # of the difference of two such medians
    if levels[3] < levels[2] - error or levels[3] > levels[2] + max(6 * error, 0.02 * levels[2]):
        return None
    from_index = int(np.argmax(curve.trend <= levels[2] + error))
    span = curve.step[-1] - curve.step[from_index]
    return Finding(
        kind="plateau",
        severity="warning",
        says=f"{curve.metric} about {levels[3]:.3f} over the last {span:,} steps: last quarter {levels[3]:.4f}, "
        f"the one before {levels[2]:.4f}, standard error {error:.4f}",
        onset_step=int(curve.step[from_index]),
        metric=curve.metric,
        numbers={"last_quarter": levels[3], "quarter_before": levels[2], "standard_error": float(error)},
    )


def oscillation(curve: Curve) -> Finding | None:
    """A residual that repeats itself with a period, or a scatter that has grown out of proportion."""
    if len(curve) < 2 * FEWEST:
        return None
    return _swing(curve) or _growing_scatter(curve)


def _swing(curve: Curve) -> Finding | None:
    noise = float(np.median(curve.noise))
    residual = np.clip(curve.value - curve.trend, -4 * curve.noise, 4 * curve.noise)
    correlation = autocorrelation(residual)
    most = len(correlation) // 2
    negative = np.flatnonzero(
        correlation[:most] < 0
    )  # a period shows as a fall below zero and a peak after it
    if not len(negative):
        return None
    first = int(negative[0])
    lag = first + int(np.argmax(correlation[first:most]))
    if correlation[lag] < SWINGS or correlation[first:lag].min(initial=0) > -SWINGS / 2:
        return None
    amplitude = float(np.sqrt(2) * residual.std())
    size = max(
        float(np.median(np.abs(curve.trend))), float(np.ptp(curve.trend)) / 2
    )  # a loss may end near zero
    if amplitude < max(MATERIAL * size, noise / 2):
        return None
    period = lag * curve.stride
    return Finding(
        kind="oscillation",
        severity="warning" if amplitude >= LARGE * size else "info",
        says=f"{curve.metric} swings by {amplitude:.3f} with a period of about {period:,} steps "
        f"(correlation with itself one period later {correlation[lag]:.2f})",
        onset_step=int(curve.step[0]),
        metric=curve.metric,
        numbers={"amplitude": amplitude, "period_steps": period, "correlation": float(correlation[lag])},
    )


def autocorrelation(residual: NDArray[np.float64]) -> NDArray[np.float64]:
    """Autocorrelation at the lags from 0 to half the length, by the Fourier transform of the padded residual."""
    centred = residual - residual.mean()
    spectrum = np.fft.rfft(centred, 2 * len(centred))
    sums = np.fft.irfft(np.abs(spectrum) ** 2)[: max(1, len(centred) // 2)]
    pairs = len(centred) - np.arange(len(sums))
    return sums / pairs / max(sums[0] / len(centred), 1e-300)


def _growing_scatter(curve: Curve) -> Finding | None:
    """Scatter far above that of the quietest tenth since half of the fall: an untrained model finds any text equally
    hard, so that batches of several domains begin to differ only as it learns."""
    bounds = np.linspace(0, len(curve), 11).astype(int)
    scatter = np.array([np.median(curve.noise[lo:hi]) for lo, hi in pairwise(bounds)])
    half = (curve.trend[0] + curve.trend.min()) / 2
    first = min(int(np.searchsorted(bounds, int(np.argmax(curve.trend <= half)))), len(scatter) - 2)
    quiet = first + int(np.argmin(scatter[first:-1]))
    loud = quiet + 1 + int(np.argmax(scatter[quiet + 1 :]))
    lo, hi = int(bounds[loud]), int(bounds[loud + 1]) - 1
    level = float(np.median(np.abs(curve.trend[lo : hi + 1])))
    if scatter[loud] < max(NOISIER * scatter[quiet], MATERIAL * level):
        return None
    return Finding(
        kind="oscillation",
        severity="warning",
        says=f"{curve.metric} scatters by {scatter[loud]:.3g} at steps {curve.step[lo]:,}-{curve.step[hi]:,}, by "
        f"{scatter[quiet]:.3g} at steps {curve.step[bounds[quiet]]:,}-{curve.step[bounds[quiet + 1] - 1]:,}",
        onset_step=int(curve.step[lo]),
        metric=curve.metric,
        numbers={"scatter": float(scatter[loud]), "quietest": float(scatter[quiet])},
        rows=rows_around(curve.step, curve.value, lo, hi),
    )
