"""Loss of dense and routed models: L = a * E^delta * N^-(alpha + gamma ln E) + b * E^omega * D^-(beta + zeta ln E) + c.

N counts active parameters, E is the number of experts. Ludziejewski et al. 2025 (arXiv 2502.05172), with E in place
of their saturated E^ (that is E_start = 1, E_max infinite) and exponents written as positive numbers.
"""

import numpy as np

from analysis.laws import chinchilla_approach_3
from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """The three terms `[3, n, (log a, log b, log c, alpha, beta, gamma, zeta, delta, omega)]`; x is (N, D, E)."""
    n, (log_n, log_d, log_e) = len(x), np.log(x.T)
    return np.stack(
        [
            sum_of_powers.columns(n, 9, _0=1, _3=-log_n, _5=-log_n * log_e, _7=log_e),
            sum_of_powers.columns(n, 9, _1=1, _4=-log_d, _6=-log_d * log_e, _8=log_e),
            sum_of_powers.columns(n, 9, _2=1),
        ]
    )


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Approach 3 over all rows: experts change nothing at first. `[starts, 9]`"""
    base = chinchilla_approach_3.start(x[:, :2], loss)
    return np.concatenate([base, np.zeros((len(base), 4))], axis=1)


LAW = Law(
    name="joint-moe",
    variables=("n", "d", "experts"),
    parameters=("a", "b", "c", "alpha", "beta", "gamma", "zeta", "delta", "omega"),
    positive=("a", "b", "c"),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Ludziejewski et al. 2025, arXiv 2502.05172, with E^ = E",
    scale=("n", "d"),
)
