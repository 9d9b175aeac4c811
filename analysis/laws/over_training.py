"""Loss of over-trained models: L(C, M) = E + (a * M^eta + b * M^-eta) * C^-eta, M = D / N tokens per parameter.

Gadre et al. 2024 (arXiv 2403.08540). With C = 6 N D it is approach 3 with equal exponents: over-training moves the
curve in parallel, by the factor in brackets.
"""

import numpy as np

from analysis.laws.forms import sum_of_powers
from analysis.laws.forms.projection import best_starts, grid, nonnegative_amounts
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """a * (M / C)^eta, b * (M C)^-eta and E as `[3, n, (log a, log b, log E, eta)]`; x is `[n, (N, D)]`."""
    n, (log_n, log_d) = len(x), np.log(x.T)
    return np.stack(
        [
            sum_of_powers.columns(n, 4, _0=1, _3=-np.log(6) - 2 * log_n),
            sum_of_powers.columns(n, 4, _1=1, _3=-np.log(6) - 2 * log_d),
            sum_of_powers.columns(n, 4, _2=1),
        ]
    )


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection over a grid of eta: the best few `[starts, 4]`."""
    eta = grid(np.linspace(0.02, 0.6, 59))
    n_term, d_term = terms(x)[:2, :, 3]
    basis = np.stack([np.exp(eta * n_term), np.exp(eta * d_term), np.ones((len(eta), len(x)))], axis=1)
    return best_starts(*nonnegative_amounts(basis, loss), eta)


LAW = Law(
    name="over-training",
    variables=("n", "d"),
    parameters=("a", "b", "E", "eta"),
    positive=("a", "b", "E"),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Gadre et al. 2024, arXiv 2403.08540, with M = D/N and C = 6ND",
    scale=("n", "d"),
)
