"""Resampling: moving blocks for correlated curves, exact or random resamples for runs.

Moving-block bootstrap: Künsch (1989). The block length follows the integrated autocorrelation time with
Sokal's automatic window (Sokal 1997, lecture notes, eq. 3.19), doubled, so that a block holds a few
correlation lengths.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

EXACT_UP_TO = 4_096
"""All n^n resamples are enumerated while there are no more than this many (n <= 5)."""


def autocorrelation_time(noise: Numbers) -> float:
    """Integrated autocorrelation time in points, at least 1; 1 for white or constant noise."""
    n = len(noise)
    centred = noise - noise.mean()
    variance = float(centred @ centred)
    if n < 4 or variance <= 1e-24 * max(1.0, float(noise @ noise)):
        return 1.0
    spectrum = np.fft.rfft(centred, 2 * n)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[:n] / variance
    time = 1.0
    for lag in range(1, n // 2):
        time += 2 * correlation[lag]
        if lag >= 5 * time:
            break
    return max(1.0, float(time))


def block_length(noise: Numbers) -> int:
    """Block length for a moving-block bootstrap of `noise`: twice its autocorrelation time plus the n^(1/3)
    that consistency asks for, at most a quarter of the points."""
    n = len(noise)
    wished = int(np.ceil(2 * autocorrelation_time(noise) + n ** (1 / 3)))
    return max(1, min(wished, n // 4))


def moving_blocks(pool: int, length: int, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices of one moving-block resample of `n` out of `pool` points: blocks of `length`, starts uniform."""
    starts = rng.integers(0, pool - length + 1, size=-(-n // length))
    return (starts[:, None] + np.arange(length)).ravel()[:n]


def block_interval(
    trend: Numbers,
    noise: Numbers,
    statistic: Callable[[Numbers], float],
    length: int,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of `statistic(trend + noise)` when blocks of `length` of `noise` are drawn anew.

    The trend stays where it is, so the interval speaks about the noise of the log and not about the curve's
    own change along x. `noise` is the pool to draw from and may be shorter than the trend. Deterministic for a
    given seed.
    """
    rng = np.random.default_rng(seed)
    centred = noise - noise.mean()
    values = [
        statistic(trend + centred[moving_blocks(len(noise), length, len(trend), rng)])
        for _ in range(resamples)
    ]
    lo, hi = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(lo), float(hi)


def run_resamples(n: int, resamples: int, seed: int = 0) -> tuple[NDArray[np.intp], bool]:
    """Resamples of `n` runs with replacement, `[resamples, n]`, and whether they are all there are."""
    if n**n <= EXACT_UP_TO:
        return np.array(list(_all(n)), dtype=np.intp), True
    return np.random.default_rng(seed).integers(0, n, size=(resamples, n)), False


def _all(n: int) -> Iterator[tuple[int, ...]]:
    return product(range(n), repeat=n)
