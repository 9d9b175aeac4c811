"""A loss curve from its learning-rate schedule: L(s) = L0 + A * S1^-alpha - C * S2.

Tissue et al. 2024 (arXiv 2408.11029): S1 is the sum of the learning rates so far, S2 the sum of a momentum of their
falls that decays by lambda = .999 per step (`lr_integrals`). One law fits curves of different schedules; all
curves of a fit are of one model and one batch size.
"""

import numpy as np
import pandas as pd

from analysis.laws.forms.lr_integrals import lr_momentum, lr_sum, per_curve
from analysis.laws.forms.projection import best_starts, grid, nonnegative_amounts
from analysis.laws.law import Law, Numbers

# theta = (log L0, log A, log C, alpha)

MOMENTUM = 0.999


def features(points: pd.DataFrame) -> Numbers:
    """(S1, S2) of each row `[n, 2]`, from the columns step, lr and group."""
    return per_curve(
        points, lambda step, lr: np.stack([lr_sum(step, lr), lr_momentum(step, lr, MOMENTUM)], axis=1)
    )


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 4]` and `x [n, (S1, S2)]`."""
    return np.log(np.maximum(_terms(theta, x)[0], 1e-12))


def linearised(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """log L `[batch, n]` and its derivative `[batch, 4, n]`."""
    total, level, power, fall = _terms(theta, x)
    total = np.maximum(total, 1e-12)
    slopes = [np.broadcast_to(level, total.shape), power, -fall, -power * np.log(x[:, 0])]
    return np.log(total), np.stack(slopes, axis=1) / total[:, None]


def _terms(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """L `[batch, n]` and its parts L0 `[batch, 1]`, A * S1^-alpha and C * S2."""
    level = np.exp(theta[:, :1])
    power = np.exp(theta[:, 1:2] - theta[:, 3:] * np.log(x[:, 0]))
    fall = np.exp(theta[:, 2:3]) * x[:, 1]
    return level + power - fall, level, power, fall


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection over a grid of alpha. `[starts, 4]`"""
    alpha = grid(np.linspace(0.05, 1.5, 59))
    basis = np.stack(
        [
            np.ones((len(alpha), len(x))),
            np.exp(-alpha * np.log(x[:, 0])),
            np.broadcast_to(-x[:, 1], (len(alpha), len(x))),
        ],
        axis=1,
    )
    return best_starts(*nonnegative_amounts(basis, loss), alpha)


LAW = Law(
    name="tissue",
    variables=("step", "lr"),
    parameters=("L0", "A", "C", "alpha"),
    positive=("L0", "A", "C"),
    log_loss=log_loss,
    linearised=linearised,
    start=start,
    source="Tissue et al. 2024, arXiv 2408.11029",
    scale=("step",),
    features=features,
)
