"""Data mixing law: L(r) = c + k exp(sum_j t_j r_j), with k > 0. Ye et al. 2024, arXiv 2403.16952, eq. 6.

The shares sum to 1, so k is one with a constant added to every t_j; it is fixed at 1. The law is convex in r.
"""

import numpy as np
from scipy.optimize import least_squares

from analysis.mixing.law import Fitted, MixingLaw, Numbers

FLOORS = np.linspace(0.0, 0.99, 34)
"""Tried as c, in parts of the lowest loss; for each the best t is a linear problem."""

MOST_EXPONENT = 700.0


def start(weights: Numbers, loss: Numbers) -> Numbers:
    """(c, t) by variable projection: of all floors c the one whose regression of log(L - c) on r fits best.

    Rows are weighted by L - c, which makes errors in the logarithm errors of the loss to first order.
    """
    best, least = np.zeros(1 + weights.shape[1]), np.inf
    for c in FLOORS * loss.min():
        above = loss - c
        t, *_ = np.linalg.lstsq(weights * above[:, None], np.log(above) * above, rcond=None)
        error = float(np.sum((c + _bounded_exp(weights @ t) - loss) ** 2))
        if error < least:
            best, least = np.append(c, t), error
    return best


def fit(weights: Numbers, loss: Numbers) -> Fitted:
    """Least squares in the loss from `start`; losses must be above 0."""

    def residual(theta: Numbers) -> Numbers:
        return theta[0] + _bounded_exp(weights @ theta[1:]) - loss

    def jacobian(theta: Numbers) -> Numbers:
        above = _bounded_exp(weights @ theta[1:])
        return np.column_stack([np.ones(len(above)), above[:, None] * weights])

    theta = least_squares(
        residual, start(weights, loss), jac=jacobian, method="trf", xtol=1e-12, ftol=1e-12
    ).x
    c, t = float(theta[0]), theta[1:]
    return Fitted(
        parameters={"c": c} | {f"t[{j}]": float(value) for j, value in enumerate(t)},
        predict=lambda r: c + _bounded_exp(r @ t),
        gradient=lambda r: _bounded_exp(r @ t) * t,
        convex=True,
    )


def _bounded_exp(exponent: Numbers) -> Numbers:
    return np.exp(np.clip(exponent, -MOST_EXPONENT, MOST_EXPONENT))


LAW = MixingLaw(
    fit=fit, least_runs=lambda domains: domains + 2, source="Ye et al. 2024, arXiv 2403.16952, eq. 6"
)
