"""Resampling: moving blocks for correlated curves, exact or random resamples for runs; intervals from them.

Moving-block bootstrap: Künsch (1989). The block length follows the integrated autocorrelation time with
Sokal's automatic window (Sokal 1997, lecture notes, eq. 3.19), doubled, so that a block holds a few
correlation lengths.
"""

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from math import factorial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

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


def resample_counts(
    n: int, resamples: int, batch: int, seed: int = 0
) -> Iterator[tuple[Numbers, NDArray[np.intp]]]:
    """How often each of `n` runs counts in each resample, a batch at a time, so that memory stays bounded.

    Where all n^n resamples are enumerated, those with the same counts come once, with their number.

    Yields:
        Counts `[at most batch, n]`, and how many resamples have them `[at most batch]`.
    """
    if n**n <= EXACT_UP_TO:
        chosen = np.array(list(combinations_with_replacement(range(n), n)), dtype=np.intp)
        counts = np.apply_along_axis(np.bincount, 1, chosen, minlength=n).astype("float64")
        orders = [factorial(n) // int(np.prod([factorial(int(c)) for c in row])) for row in counts]
        for i in range(0, len(counts), batch):
            yield counts[i : i + batch], np.array(orders[i : i + batch], dtype=np.intp)
        return
    rng = np.random.default_rng(seed)
    for i in range(0, resamples, batch):
        rows = min(batch, resamples - i)
        chosen = rng.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield (
            np.bincount(chosen.ravel(), minlength=rows * n).reshape(rows, n).astype("float64"),
            np.ones(rows, np.intp),
        )


def percentile_interval(samples: Numbers, level: float = 0.95) -> Numbers:
    """Lowest and highest of the middle `level` of each column of `samples [resamples, k]`, `[2, k]`."""
    return np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)


def bca_interval(samples: Numbers, estimate: Numbers, left_out: Numbers, level: float = 0.95) -> Numbers:
    """Bias-corrected and accelerated interval of each column, `[2, k]` (Efron 1987, JASA 82, 171).

    Args:
        samples: `[resamples, k]`; estimate: `[k]`.
        left_out: the estimate without each run in turn, `[runs, k]`, for the acceleration.
    """
    share = (samples < estimate).mean(axis=0) + (samples == estimate).mean(axis=0) / 2
    bias = ndtri(np.clip(share, 1 / len(samples), 1 - 1 / len(samples)))
    centred = left_out.mean(axis=0) - left_out
    largest = np.abs(centred).max(axis=0)
    centred = centred / np.where(largest > 0, largest, 1.0)
    acceleration = (centred**3).sum(axis=0) / (6 * np.maximum((centred**2).sum(axis=0), 1.0) ** 1.5)
    ends = []
    for z in ndtri(np.array([(1 - level) / 2, (1 + level) / 2])):
        moved = ndtr(bias + (bias + z) / np.maximum(1 - acceleration * (bias + z), 1e-3))
        ends.append([np.quantile(samples[:, i], q) for i, q in enumerate(moved)])
    return np.array(ends)
