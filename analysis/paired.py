"""Paired comparisons with a baseline: noise between seeds, intervals, power, and the correction for many tests.

Runs of one seed start alike and read alike, so what a seed does to all variants cancels in the difference of a pair.
What is left is modelled as a randomised block design (Montgomery, Design and Analysis of Experiments, ch. 4): level
of variant v with seed s = mean of v + effect of s + noise, the noise equally large for all. Its residual mean square
estimates that noise from all runs at once, with (variants - 1) * (seeds - 1) degrees of freedom. Pooling the variances
of the differences instead would count the baseline's noise once per variant.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from scipy.stats import t as student

from analysis.bootstrap import run_resamples

Numbers = NDArray[np.float64]

LEVEL = 0.05
POWER = 0.8
MOST_SEEDS = 99
RESAMPLES = 10_000

ROUNDING = 1e-12
"""Noise below this share of the level is rounding: the seeds then had no effect, and nothing is known of it."""


class Noise(NamedTuple):
    """Noise between seeds of one difference: its standard deviation (None where unknown) and its degrees of freedom."""

    sd: float | None
    degrees_of_freedom: int


def residual_noise(
    variants: NDArray[np.intp], seeds: NDArray[np.intp], levels: Numbers
) -> tuple[Numbers, int]:
    """Standard deviation of a paired difference, from the least-squares residuals of variant and seed effects.

    Args:
        variants, seeds: numbers of the variant and of the seed of each run, `[runs]`.
        levels: what the runs reached, `[runs, columns]`; each column is an experiment of its own.

    Returns:
        sqrt(2 * residual mean square), `[columns]`, 0 where it is rounding only; and the degrees of freedom that the
        runs leave. With none of these, the standard deviations are NaN.
    """
    design = np.concatenate(
        [variants[:, None] == np.unique(variants), seeds[:, None] == np.unique(seeds)], axis=1
    ).astype("float64")
    dof = len(levels) - int(np.linalg.matrix_rank(design))
    if dof == 0:
        return np.full(levels.shape[1], np.nan), 0
    centred = levels - levels.mean(axis=0)
    effects, *_ = np.linalg.lstsq(design, centred, rcond=None)
    sd = np.sqrt(2 * ((centred - design @ effects) ** 2).sum(axis=0) / dof)
    return np.where(sd < ROUNDING * np.abs(levels).max(axis=0), 0.0, sd), dof


def noise_interval(noise: Noise) -> tuple[float, float] | None:
    """95 % interval of the noise's standard deviation (chi square), or None where it is unknown."""
    if noise.sd is None:
        return None
    dof = noise.degrees_of_freedom
    low, high = (noise.sd * float(np.sqrt(dof / chi2.ppf(q, dof))) for q in (1 - LEVEL / 2, LEVEL / 2))
    return low, high


def t_interval(mean: float, sd: float, n: int, dof: int) -> tuple[float, float]:
    """95 % interval of the mean of `n` differences whose standard deviation `sd` has `dof` degrees of freedom."""
    half = float(student.ppf(1 - LEVEL / 2, dof) * sd / np.sqrt(n))
    return mean - half, mean + half


def p_value(mean: float, sd: float, n: int, dof: int) -> float:
    """Two-sided p of a mean of `n` differences under no difference; 1 where both mean and noise are zero."""
    return float(2 * student.sf(abs(mean) * np.sqrt(n) / sd, dof)) if sd > 0 else float(mean == 0)


def bootstrap_interval(differences: Numbers) -> tuple[float, float] | None:
    """95 % percentile interval of the mean when the pairs are drawn anew, or None with one pair.

    The deviations are stretched by sqrt(n / (n - 1)), which makes their variance unbiased (Davison and Hinkley 1997,
    sec. 2.5). Up to five pairs all resamples are enumerated. Drawn from so few pairs it is still too narrow: in 20,000
    studies of normal noise it held the truth in 59 % with 2 pairs, 74 % with 3, 87 % with 5 and 92 % with 10.
    """
    n = len(differences)
    if n < 2:
        return None
    picked, _ = run_resamples(n, RESAMPLES)
    mean = differences.mean()
    stretched = mean + (differences - mean) * np.sqrt(n / (n - 1))
    low, high = np.quantile(stretched[picked].mean(axis=1), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


@cache
def detectable(dof: int, level: float) -> float:
    """The true difference, in standard errors, that a t test at `level` finds in 80 % of studies.

    The power is that of the noncentral t distribution, whose tails scipy 1.17 does not reach with so few degrees of
    freedom; so it is integrated here over the distribution of the estimated noise.
    """
    limit = float(student.ppf(1 - level / 2, dof))
    quantiles = (np.arange(2_000) + 0.5) / 2_000
    edges = limit * np.sqrt(chi2.ppf(quantiles, dof) / dof)

    def missing(shift: float) -> float:
        return float(np.mean(norm.cdf(shift - edges) + norm.cdf(-shift - edges))) - POWER

    return float(brentq(missing, 0.0, 3 * limit + 10))


def seeds_needed(difference: float, sd: float, variants: int, level: float) -> int | None:
    """Seeds per variant at which a true `difference` would be found in 80 % of studies, or None when more than
    `MOST_SEEDS`. `variants` counts those beside the baseline; each seed adds as many degrees of freedom."""

    def enough(n: int) -> bool:
        return detectable(variants * (n - 1), level) * sd <= abs(difference) * np.sqrt(n)

    if difference == 0 or not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def holm(p: list[float]) -> list[float]:
    """Adjusted p values after Holm's step-down procedure (1979), valid whatever the tests have in common."""
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, np.array(p)[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(scaled)
    return [float(value) for value in adjusted]
