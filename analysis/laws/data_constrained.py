"""Loss when data repeat: approach 3 on effective parameters N' and effective tokens D'.

L = E + A * N'^-alpha + B * D'^-beta with
D' = U_D + U_D * R_D* * (1 - exp(-R_D / R_D*)), R_D = D / U_D - 1 repetitions of the U_D unique tokens, and
N' = U_N + U_N * R_N* * (1 - exp(-R_N / R_N*)), R_N = N / U_N - 1, where U_N is the compute-optimal size for U_D
tokens, at most N.

Muennighoff et al. 2023 (arXiv 2305.16264, eq. 5 and 6; constants R_D* 15.388, R_N* 5.310 in their code).
"""

import numpy as np

from analysis.laws import chinchilla_approach_3
from analysis.laws.forms.derivatives import with_central_differences
from analysis.laws.law import Law, Numbers

# theta = (log A, log B, log E, alpha, beta, log R_N*, log R_D*); x = [n, (N, D, unique tokens)]


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 7]` and `x [n, (N, D, unique)]`."""
    log_a, log_b, log_e, alpha, beta, rn, rd = (theta[:, i : i + 1] for i in range(7))
    log_n, log_d, log_u = np.log(x.T)
    positive = np.maximum(alpha, 1e-3), np.maximum(beta, 1e-3)
    log_g = (np.log(positive[0]) + log_a - np.log(positive[1]) - log_b) / (positive[0] + positive[1])
    optimal = log_g + positive[1] / positive[0] * (log_u + log_g)
    effective_n = _effective(log_n, np.minimum(log_n, optimal), rn)
    effective_d = _effective(log_d, np.minimum(log_d, log_u), rd)
    return np.logaddexp(np.logaddexp(log_a - alpha * effective_n, log_b - beta * effective_d), log_e)


def _effective(log_total: Numbers, log_unique: Numbers, log_decay: Numbers) -> Numbers:
    """log of U + U * R* * (1 - exp(-R / R*)) for R = total / U - 1."""
    repeats = np.expm1(np.minimum(log_total - log_unique, 50.0))
    decay = np.exp(log_decay)
    return log_unique + np.log1p(-decay * np.expm1(-repeats / decay))


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Approach 3 on the rows that repeat least, with the decays on a small grid. `[starts, 7]`"""
    repeats = x[:, 1] / x[:, 2]
    fresh = repeats <= max(2.0, float(np.quantile(repeats, 0.3)))
    base = chinchilla_approach_3.start(x[fresh, :2], loss[fresh])[:6]
    decays = np.log(np.array([[1.0, 2.0], [5.0, 15.0], [20.0, 5.0], [50.0, 50.0]]))
    return np.array([[*theta, *decay] for theta in base for decay in decays])


LAW = Law(
    name="data-constrained",
    variables=("n", "d", "unique"),
    parameters=("A", "B", "E", "alpha", "beta", "R_N", "R_D"),
    positive=("A", "B", "E", "R_N", "R_D"),
    log_loss=log_loss,
    linearised=with_central_differences(log_loss),
    start=start,
    source="Muennighoff et al. 2023, arXiv 2305.16264, eq. 5 and 6",
    scale=("n", "d"),
    bounds={"alpha": (1e-3, 3.0), "beta": (1e-3, 3.0), "R_N": (1e-2, 1e4), "R_D": (1e-2, 1e4)},
)
