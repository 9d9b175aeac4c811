"""BiMix at a fixed number of steps: every domain lowers the loss as a power of its share.

L(r) = c + sum_j F_j (r_j + e)^-a_j with F_j >= 0, a_j > 0: the sum over domains of Ge et al. 2024 (arXiv 2405.14908,
eq. 4) with its factor for the steps constant. e keeps a domain that is left out finite. Convex in r.
"""

import numpy as np
from scipy.optimize import least_squares, nnls

from analysis.mixing.law import Fitted, MixingLaw, Numbers

LEAST_SHARE = 1e-3
"""e: shares are published with three decimals."""


def start(weights: Numbers, loss: Numbers) -> Numbers:
    """(c, F, a) with one exponent for all domains: for each on a grid, non-negative least squares for c and F."""
    best, least = np.zeros(0), np.inf
    for a in np.geomspace(0.02, 2.0, 24):
        columns = np.column_stack([np.ones(len(loss)), (weights + LEAST_SHARE) ** -a])
        found, norm = nnls(columns, loss)
        if norm < least:
            best, least = np.concatenate([found, np.full(weights.shape[1], a)]), norm
    return best


def fit(weights: Numbers, loss: Numbers) -> Fitted:
    """Least squares in (c, F, a) from `start`, F not below 0, exponents from 1e-3 to 5."""
    r, domains = weights + LEAST_SHARE, weights.shape[1]

    def residual(theta: Numbers) -> Numbers:
        return theta[0] + r ** -theta[1 + domains :] @ theta[1 : 1 + domains] - loss

    def jacobian(theta: Numbers) -> Numbers:
        powers = r ** -theta[1 + domains :]
        return np.column_stack([np.ones(len(r)), powers, -powers * np.log(r) * theta[1 : 1 + domains]])

    lowest = np.concatenate([np.zeros(1 + domains), np.full(domains, 1e-3)])
    highest = np.concatenate([np.full(1 + domains, np.inf), np.full(domains, 5.0)])
    theta = least_squares(
        residual, start(weights, loss), jac=jacobian, bounds=(lowest, highest), x_scale="jac", max_nfev=100
    ).x
    c, F, a = float(theta[0]), theta[1 : 1 + domains], theta[1 + domains :]
    return Fitted(
        parameters={"c": c}
        | {f"F[{j}]": float(value) for j, value in enumerate(F)}
        | {f"a[{j}]": float(value) for j, value in enumerate(a)},
        predict=lambda r: c + ((r + LEAST_SHARE) ** -a * F).sum(axis=-1),
        gradient=lambda r: -F * a * (r + LEAST_SHARE) ** (-a - 1),
        convex=True,
    )


LAW = MixingLaw(
    fit=fit, least_runs=lambda domains: 2 * domains + 2, source="Ge et al. 2024, arXiv 2405.14908, eq. 4"
)
