"""Derivatives of laws that are too nested to differentiate by hand."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

STEP = 1e-5
"""Internal parameters are logarithms and exponents, of order one: the error of a central difference is then 1e-10."""


def with_central_differences(
    log_loss: Callable[[Numbers, Numbers], Numbers],
) -> Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]:
    """`(theta [batch, p], x) -> log L [batch, n]` and its derivative `[batch, p, n]`, by central differences."""

    def linearised(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
        slopes = []
        for i in range(theta.shape[1]):
            step = np.zeros(theta.shape[1])
            step[i] = STEP
            slopes.append((log_loss(theta + step, x) - log_loss(theta - step, x)) / (2 * STEP))
        return log_loss(theta, x), np.stack(slopes, axis=1)

    return linearised
