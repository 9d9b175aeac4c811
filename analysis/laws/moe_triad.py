"""Loss of routed models from what they cost: FLOPs per token M, active parameters N and total parameters T.

L = E + A * N^-alpha * (T / N)^-gamma * (M / (6 N))^-mu + B * D^-beta

That these three are needed, and FLOPs per token alone mislead, is from arXiv 2603.21862. The form is the plainest
that holds all three, approach 3 with a power of sparsity and a power of FLOPs per active parameter, and is Maquette's
own: a dense model without attention cost (T = N, M = 6 N) is approach 3. `gamma` is what a parameter that is not
active is worth.
"""

import numpy as np

from analysis.laws import chinchilla_approach_3
from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """The three terms `[3, n, (log A, log B, log E, alpha, beta, gamma, mu)]`; x is (N, D, T, M)."""
    n, (log_n, log_d, log_total, log_flops) = len(x), np.log(x.T)
    sparsity, cost = log_total - log_n, log_flops - np.log(6) - log_n
    return np.stack(
        [
            sum_of_powers.columns(n, 7, _0=1, _3=-log_n, _5=-sparsity, _6=-cost),
            sum_of_powers.columns(n, 7, _1=1, _4=-log_d),
            sum_of_powers.columns(n, 7, _2=1),
        ]
    )


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Approach 3 over all rows: sparsity and cost change nothing at first. `[starts, 7]`"""
    base = chinchilla_approach_3.start(x[:, :2], loss)
    return np.concatenate([base, np.zeros((len(base), 2))], axis=1)


LAW = Law(
    name="moe-triad",
    variables=("n", "d", "n_total", "flops_per_token"),
    parameters=("A", "B", "E", "alpha", "beta", "gamma", "mu"),
    positive=("A", "B", "E"),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Maquette's form on the three variables of arXiv 2603.21862",
    scale=("n", "d"),
)
