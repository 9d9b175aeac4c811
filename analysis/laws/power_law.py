"""Loss as a power of compute: L(C) = A * C^-alpha.

Kaplan et al. 2020 (arXiv 2001.08361, eq. 1.3). Fitted to the loss above a pinned floor it is the form of
Marin's public forecast. In log space it is a straight line, so the least-squares line is the optimum or
close to it.
"""

import numpy as np

from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """A * C^-alpha as `[1, n, (log A, alpha)]`."""
    return sum_of_powers.columns(len(x), 2, _0=1, _1=-np.log(x[:, 0]))[None]


def start(x: Numbers, loss: Numbers) -> Numbers:
    """The least-squares line through (log C, log L)."""
    slope, intercept = np.polyfit(np.log(x[:, 0]), np.log(loss), 1)
    return np.array([intercept, -slope])


LAW = Law(
    name="power-law",
    variables=("flops",),
    parameters=("A", "alpha"),
    positive=("A",),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.3",
    scale=("flops",),
)
