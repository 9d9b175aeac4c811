"""Loss from parameters and tokens: L(N, D) = [(N_c / N)^(alpha_N / alpha_D) + D_c / D]^alpha_D.

Kaplan et al. 2020 (arXiv 2001.08361, eq. 1.5). It has no floor: both limits are powers that go to zero. N there is
without embeddings, which moves the exponents (see `--counting`).
"""

import numpy as np

from analysis.laws.forms.projection import best_starts, grid, nonnegative_amounts
from analysis.laws.law import Law, Numbers

# theta = (log N_c, log D_c, alpha_N, alpha_D)


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 4]` and `x [n, (N, D)]`."""
    return theta[:, 3:] * np.logaddexp(*_logs(theta, x))


def linearised(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """log L `[batch, n]` and its derivative `[batch, 4, n]`."""
    u, v = _logs(theta, x)
    total = np.logaddexp(u, v)
    share = np.exp(u - total)
    alpha_n, alpha_d = theta[:, 2:3], theta[:, 3:]
    distance = theta[:, :1] - np.log(x[:, 0])
    slopes = [alpha_n * share, alpha_d * (1 - share), share * distance, total - share * u]
    return alpha_d * total, np.stack(slopes, axis=1)


def _logs(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """Logarithms of the two terms inside the bracket, each `[batch, n]`."""
    log_n, log_d = np.log(x.T)
    return theta[:, 2:3] / theta[:, 3:] * (theta[:, :1] - log_n), theta[:, 1:2] - log_d


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection: for given exponents L^(1 / alpha_D) is linear in two amounts. `[starts, 4]`"""
    log_n, log_d = np.log(x.T)
    amounts, errors, exponents = [], [], []
    for alpha_d in np.geomspace(0.03, 0.6, 16):
        ratio = grid(np.linspace(0.3, 2.5, 23))
        basis = np.stack(
            [np.exp(-ratio * log_n), np.broadcast_to(np.exp(-log_d), (len(ratio), len(x)))], axis=1
        )
        found, error = nonnegative_amounts(basis, loss ** (1 / alpha_d))
        amounts.append(found)
        errors.append(error * alpha_d**2)
        exponents.append(np.concatenate([ratio, np.full_like(ratio, alpha_d)], axis=1))
    starts = best_starts(np.concatenate(amounts), np.concatenate(errors), np.concatenate(exponents))
    ratio, alpha_d = starts[:, 2:3], starts[:, 3:]
    return np.concatenate([starts[:, :1] / ratio, starts[:, 1:2], ratio * alpha_d, alpha_d], axis=1)


LAW = Law(
    name="kaplan",
    variables=("n", "d"),
    parameters=("N_c", "D_c", "alpha_N", "alpha_D"),
    positive=("N_c", "D_c"),
    log_loss=log_loss,
    linearised=linearised,
    start=start,
    source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5",
    scale=("n", "d"),
    bounds={"alpha_D": (1e-3, 5.0)},
)
