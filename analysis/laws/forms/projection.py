"""Variable projection: for given exponents the amounts of a law are a least-squares problem of their own.

Golub and Pereyra 1973 (SIAM J. Numer. Anal. 10, 413). On a grid of exponents this finds the start of a fit
without any search over amounts, whose scale is unknown.
"""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

TRACE = 1e-3
"""The least share of the response, in root mean square, that a term starts with."""


def nonnegative_amounts(basis: Numbers, response: Numbers) -> tuple[Numbers, Numbers]:
    """Least squares with amounts >= 0 and relative errors, for each grid point.

    All subsets of the few terms are tried, so that the best is exact; then a term that came out as zero is given a
    trace of the response, as log space has no zero, and a fit can still lower it.

    Args:
        basis: the terms with amount one, `[grid, terms, n]`.
        response: `[n]`, positive.

    Returns:
        Amounts `[grid, terms]`, above zero, and the sum of squared relative errors `[grid]`.
    """
    relative = basis / response
    scale = np.sqrt((relative**2).mean(axis=2)) + 1e-300
    relative = relative / scale[..., None]
    gram, moment = relative @ relative.transpose(0, 2, 1), relative.sum(axis=2)
    k, n = basis.shape[1], len(response)
    best, least = np.zeros(basis.shape[:2]), np.full(len(basis), float(n))
    for size in range(1, k + 1):
        for subset in combinations(range(k), size):
            chosen = list(subset)
            part = gram[:, chosen][:, :, chosen] + 1e-12 * n * np.eye(size)
            amounts = np.linalg.solve(part, moment[:, chosen, None])[..., 0]
            error = n - (amounts * moment[:, chosen]).sum(axis=1)
            better = (amounts >= 0).all(axis=1) & (error < least)
            least = np.where(better, error, least)
            padded = np.zeros_like(best)
            padded[:, chosen] = amounts
            best = np.where(better[:, None], padded, best)
    return np.maximum(best, TRACE) / scale, least


def best_starts(amounts: Numbers, error: Numbers, exponents: Numbers, starts: int = 16) -> Numbers:
    """(log amounts, exponents) `[starts, terms + exponents]` of the grid points with the least error."""
    chosen = np.argsort(error, kind="stable")[:starts]
    return np.concatenate([np.log(amounts[chosen]), exponents[chosen]], axis=1)


def grid(*axes: Numbers) -> Numbers:
    """All combinations of the axes' values, `[points, axes]`."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
