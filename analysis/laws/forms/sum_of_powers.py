"""Laws that are sums of power terms: log L = logsumexp_k(F_k theta), linear in theta inside each term.

Most scaling laws are of this form when amounts are fitted as logarithms (Hoffmann et al. 2022, arXiv 2203.15556,
eq. 3 in its log-sum-exp form). A law then only says which terms it has.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Terms = Callable[[Numbers], Numbers]
"""`x [n, variables] -> F [terms, n, p]`"""


def log_loss(terms: Terms) -> Callable[[Numbers, Numbers], Numbers]:
    """`(theta [batch, p], x [n, variables]) -> log L [batch, n]` of the law with these terms."""

    def evaluate(theta: Numbers, x: Numbers) -> Numbers:
        return _log_sum(theta, terms(x))[0]

    return evaluate


def linearised(terms: Terms) -> Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]:
    """Likewise -> log L `[batch, n]` and d log L / d theta `[batch, p, n]`: the terms' shares times F."""

    def evaluate(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
        design = terms(x)
        value, parts, total = _log_sum(theta, design)
        jacobian = np.zeros((len(theta), theta.shape[1], len(x)))
        for part, matrix in zip(parts, design, strict=True):
            share = part / total
            for i in np.flatnonzero(matrix.any(axis=0)):
                column = matrix[:, i]
                jacobian[:, i] += share if (column == 1).all() else share * column
        return value, jacobian

    return evaluate


def _log_sum(theta: Numbers, design: Numbers) -> tuple[Numbers, list[Numbers], Numbers]:
    """log of the sum `[batch, n]`, the terms and the sum, both over the largest term."""
    logs = [theta @ matrix.T for matrix in design]
    largest = logs[0] if len(logs) == 1 else np.maximum.reduce(logs)
    parts = [np.exp(log - largest) for log in logs]
    total = parts[0] if len(logs) == 1 else np.add.reduce(parts)
    return largest + np.log(total), parts, total


def columns(n: int, p: int, **filled: Numbers | float) -> Numbers:
    """One term's matrix `[n, p]`: `_0=1, _3=-log_n` fills columns 0 and 3, the rest is zero."""
    matrix = np.zeros((n, p))
    for name, column in filled.items():
        matrix[:, int(name[1:])] = column
    return matrix
