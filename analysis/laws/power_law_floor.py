"""Loss as a power of compute above a floor that is estimated: L(C) = E + A * C^-alpha.

Henighan et al. 2020 (arXiv 2010.14701, eq. 1.1). The start is by variable projection: for each floor on a
grid the best line through (log C, log(L - E)), and of these the floor with the least squared error in log L.
"""

import numpy as np

from analysis.laws import power_law
from analysis.laws.law import Law, Numbers, bounded_exp

# theta = (log A, alpha, log E)


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 3]` and compute `[n, 1]`."""
    return np.logaddexp(theta[:, :1] - theta[:, 1:2] * np.log(x[:, 0]), theta[:, 2:])


def jacobian(theta: Numbers, x: Numbers) -> Numbers:
    """d log L / d theta `[batch, n, 3]`: the shares of the two terms in the loss."""
    log_c = np.log(x[:, 0])
    share = np.exp(theta[:, :1] - theta[:, 1:2] * log_c - log_loss(theta, x))
    return np.stack([share, -share * log_c, 1 - share], axis=-1)


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection over 200 floors between 1 and 99.9 % of the lowest loss."""
    best, least = np.zeros(3), np.inf
    for floor in loss.min() * np.linspace(0.01, 0.999, 200):
        theta = np.append(power_law.start(x, loss - floor), np.log(floor))
        error = float(np.sum((log_loss(theta[None], x)[0] - np.log(loss)) ** 2))
        if error < least:
            best, least = theta, error
    return best


def report(theta: Numbers) -> Numbers:
    """(A, alpha, E) `[batch, 3]`."""
    return np.stack([bounded_exp(theta[:, 0]), theta[:, 1], bounded_exp(theta[:, 2])], axis=-1)


LAW = Law(
    name="power-law-floor",
    variables=("flops",),
    parameters=("A", "alpha", "E"),
    log_loss=log_loss,
    jacobian=jacobian,
    start=start,
    report=report,
    source="Henighan et al. 2020, arXiv 2010.14701, eq. 1.1",
)
