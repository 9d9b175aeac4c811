"""The irreducible term of a loss curve, with an interval: how far down the loss could go.

L(t) = E + A * t^-alpha over steps done (Henighan et al. 2020, arXiv 2010.14701, eq. 1.1), fitted in log space with
Huber's loss to the log after its start. One curve seldom fixes E; the interval says whether it does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.bootstrap import block_length, moving_blocks
from analysis.curves import points
from analysis.laws.power_law_floor import LAW
from analysis.solver import solve
from logs.schema import Run

Numbers = NDArray[np.float64]

FITTED_POINTS = 300
RESAMPLES = 100
SKIPPED_START = 0.05
"""Share of the log before which the loss follows the warm-up and not the law."""

IDENTIFIED = 0.1
"""Widest interval, relative to the last loss, with which the term counts as known."""

LOWEST = 0.02
"""A term below this share of the last loss is where the fit ends up when the curve has no bend to show one."""


@dataclass(frozen=True)
class Irreducible:
    """The term, its 95 % interval by block bootstrap, and whether that is narrow enough to subtract it."""

    value: float
    interval: tuple[float, float]
    identified: bool


def fit_irreducible(run: Run, metric: str) -> Irreducible | None:
    """The irreducible term of `metric`, or None with fewer than 20 positive points after the start."""
    rows = points(run, metric)
    done, loss = rows["done"].to_numpy("float64"), rows["value"].to_numpy("float64")
    used = np.flatnonzero((done > SKIPPED_START * done[-1]) & (loss > 0))
    if len(used) < 20:
        return None
    used = used[np.unique(np.linspace(0, len(used) - 1, min(len(used), FITTED_POINTS)).astype(int))]
    x, y = (done[used] / done[-1])[:, None], loss[used]
    if np.ptp(y) == 0:
        return None
    begin = LAW.start(x, y)[None]
    ones = np.ones((1, len(y)))
    fitted = solve(LAW, begin, x, y, ones, delta=1e-3)
    residual = np.log(y) - LAW.log_loss(fitted.theta, x)[0]
    length = block_length(residual)
    rng = np.random.default_rng(0)
    drawn = [
        np.bincount(moving_blocks(len(y), length, len(y), rng), minlength=len(y)) for _ in range(RESAMPLES)
    ]
    again = solve(
        LAW, np.repeat(fitted.theta, RESAMPLES, axis=0), x, y, np.array(drawn, "float64"), delta=1e-3
    )
    low, high = np.quantile(np.exp(again.theta[:, 2]), [0.025, 0.975])
    value = float(np.exp(fitted.theta[0, 2]))
    last = float(np.median(y[-max(1, len(y) // 20) :]))
    narrow = bool(high - low <= IDENTIFIED * last and LOWEST * last < low and high < last)
    return Irreducible(value, (float(min(low, value)), float(max(high, value))), narrow)
