"""Best learning rate from parameters and tokens: lr(N, D) = c * N^alpha * D^beta.

Li et al. 2025, "Step Law" (arXiv 2503.04715, eq. 1: 1.79 N^-0.713 D^0.307, N without embeddings). Each point is the
best learning rate of a sweep at one N and D.
"""

import numpy as np

from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """c * N^alpha * D^beta as `[1, n, (log c, alpha, beta)]`."""
    log_n, log_d = np.log(x.T)
    return sum_of_powers.columns(len(x), 3, _0=1, _1=log_n, _2=log_d)[None]


def start(x: Numbers, lr: Numbers) -> Numbers:
    """Least squares in logarithms, `[3]`."""
    return np.linalg.lstsq(terms(x)[0], np.log(lr), rcond=None)[0]


LAW = Law(
    name="step-law-lr",
    variables=("n", "d"),
    parameters=("c", "alpha", "beta"),
    positive=("c",),
    log_loss=sum_of_powers.log_loss(terms),
    linearised=sum_of_powers.linearised(terms),
    start=start,
    source="Li et al. 2025, arXiv 2503.04715, eq. 1",
    scale=("n", "d"),
    response="lr",
)
