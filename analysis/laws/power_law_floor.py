"""Loss as a power of compute above a floor that is estimated: L(C) = E + A * C^-alpha.

Henighan et al. 2020 (arXiv 2010.14701, eq. 1.1). The start is by variable projection: for each floor on a
grid the best line through (log C, log(L - E)), and of these the floor with the least squared error in log L.
"""

import numpy as np

from analysis.laws import power_law
from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """A * C^-alpha and E as `[2, n, (log A, alpha, log E)]`."""
    n = len(x)
    return np.stack(
        [sum_of_powers.columns(n, 3, _0=1, _1=-np.log(x[:, 0])), sum_of_powers.columns(n, 3, _2=1)]
    )


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection over 200 floors between 1 and 99.9 % of the lowest loss."""
    best, least = np.zeros(3), np.inf
    for floor in loss.min() * np.linspace(0.01, 0.999, 200):
        theta = np.append(power_law.start(x, loss - floor), np.log(floor))
        error = float(np.sum((LAW.log_loss(theta[None], x)[0] - np.log(loss)) ** 2))
        if error < least:
            best, least = theta, error
    return best


LAW = Law(
    name="power-law-floor",
    variables=("flops",),
    parameters=("A", "alpha", "E"),
    positive=("A", "E"),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Henighan et al. 2020, arXiv 2010.14701, eq. 1.1",
    scale=("flops",),
)
