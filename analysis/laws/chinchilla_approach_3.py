"""Loss from parameters and tokens: L(N, D) = E + A * N^-alpha + B * D^-beta.

Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, eq. 2; fitted as there in log-sum-exp form by Huber's loss of
log residuals with delta 1e-3 (`--delta 1e-3`). Besiroglu et al. 2024 (arXiv 2404.10102) showed that the published
constants are not the optimum: the optimizer had stopped early.
"""

import numpy as np

from analysis.laws.forms import sum_of_powers
from analysis.laws.forms.projection import best_starts, grid, nonnegative_amounts
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """A * N^-alpha, B * D^-beta and E as `[3, n, (log A, log B, log E, alpha, beta)]`."""
    n, (log_n, log_d) = len(x), np.log(x.T)
    return np.stack(
        [
            sum_of_powers.columns(n, 5, _0=1, _3=-log_n),
            sum_of_powers.columns(n, 5, _1=1, _4=-log_d),
            sum_of_powers.columns(n, 5, _2=1),
        ]
    )


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection over a grid of exponents: the best few `[starts, 5]`."""
    exponents = grid(np.linspace(0.05, 1.0, 20), np.linspace(0.05, 1.0, 20))
    log_n, log_d = np.log(x.T)
    basis = np.stack(
        [
            np.exp(-exponents[:, :1] * log_n),
            np.exp(-exponents[:, 1:] * log_d),
            np.ones((len(exponents), len(x))),
        ],
        axis=1,
    )
    return best_starts(*nonnegative_amounts(basis, loss), exponents)


LAW = Law(
    name="chinchilla-approach-3",
    variables=("n", "d"),
    parameters=("A", "B", "E", "alpha", "beta"),
    positive=("A", "B", "E"),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Hoffmann et al. 2022, arXiv 2203.15556, approach 3, eq. 2",
    scale=("n", "d"),
)
