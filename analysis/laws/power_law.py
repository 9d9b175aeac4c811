"""Loss as a power of compute: L(C) = A * C^-alpha.

Kaplan et al. 2020 (arXiv 2001.08361, eq. 1.3). Fitted to the loss above a pinned floor it is the form of
Marin's public forecast. In log space it is a straight line, so the least-squares line is the optimum or
close to it.
"""

import numpy as np

from analysis.laws.law import Law, Numbers, bounded_exp

# theta = (log A, alpha)


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 2]` and compute `[n, 1]`."""
    return theta[:, :1] - theta[:, 1:] * np.log(x[:, 0])


def jacobian(theta: Numbers, x: Numbers) -> Numbers:
    """d log L / d theta `[batch, n, 2]`: (1, -log C)."""
    row = np.stack([np.ones(len(x)), -np.log(x[:, 0])], axis=-1)
    return np.broadcast_to(row, (len(theta), *row.shape))


def start(x: Numbers, loss: Numbers) -> Numbers:
    """The least-squares line through (log C, log L)."""
    slope, intercept = np.polyfit(np.log(x[:, 0]), np.log(loss), 1)
    return np.array([intercept, -slope])


def report(theta: Numbers) -> Numbers:
    """(A, alpha) `[batch, 2]`."""
    return np.stack([bounded_exp(theta[:, 0]), theta[:, 1]], axis=-1)


LAW = Law(
    name="power-law",
    variables=("flops",),
    parameters=("A", "alpha"),
    log_loss=log_loss,
    jacobian=jacobian,
    start=start,
    report=report,
    source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.3",
)
