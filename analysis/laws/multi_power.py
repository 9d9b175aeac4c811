"""A loss curve from its learning-rate schedule: the multi-power law.

L(t) = L0 + A * S(t)^-alpha - B * sum_k (eta_{k-1} - eta_k) * [1 - (1 + C * eta_k^-gamma * S_k(t))^-beta], where S is
the sum of the learning rates so far, warm-up included, and S_k the sum since the k-th fall.

Luo et al. 2025 (arXiv 2503.12811, eq. 1 and 2). Falls are gathered into at most `PIECES` of equal size per curve.
"""

import numpy as np
import pandas as pd

from analysis.laws.forms.lr_integrals import PIECES, lr_falls, lr_sum, per_curve
from analysis.laws.forms.projection import best_starts, grid, nonnegative_amounts
from analysis.laws.law import Law, Numbers

# theta = (log L0, log A, log B, log C, alpha, beta, gamma)


def features(points: pd.DataFrame) -> Numbers:
    """`[n, 1 + 3 * PIECES]`: S, and of each piece its fall so far, its learning rate, and the sum since it."""
    return per_curve(
        points, lambda step, lr: np.concatenate([lr_sum(step, lr)[:, None], lr_falls(step, lr)], axis=1)
    )


def log_loss(theta: Numbers, x: Numbers) -> Numbers:
    """log L `[batch, n]` for theta `[batch, 7]` and the `features`."""
    power = np.exp(theta[:, 1:2] - theta[:, 4:5] * np.log(x[:, 0]))
    gain = np.stack([_gain(row, x)[0] for row in theta])
    return np.log(np.maximum(np.exp(theta[:, :1]) + power - np.exp(theta[:, 2:3]) * gain, 1e-12))


def linearised(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """log L `[batch, n]` and its derivative `[batch, 7, n]`."""
    values, slopes = [], []
    for row in theta:
        level, amount = np.exp(row[0]), np.exp(row[2])
        power = np.exp(row[1] - row[4] * np.log(x[:, 0]))
        gain, by_c, by_beta, by_gamma = _gain(row, x)
        values.append(np.maximum(level + power - amount * gain, 1e-12))
        slopes.append(
            np.stack(
                [
                    np.full(len(x), level),
                    power,
                    -amount * gain,
                    -amount * by_c,
                    -power * np.log(x[:, 0]),
                    -amount * by_beta,
                    -amount * by_gamma,
                ]
            )
        )
    total = np.stack(values)
    return np.log(total), np.stack(slopes) / total[:, None]


def _gain(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The sum over falls `[n]`, and its derivatives by log C, beta and gamma."""
    pieces = x[:, 1:].reshape(len(x), 3, PIECES)
    row, piece = np.nonzero(pieces[:, 0])  # most pieces of most rows have not fallen yet
    fall, lr, since = pieces[row, :, piece].T
    beta, gamma = theta[5:]
    log_lr = np.log(lr)
    inner = np.exp(np.clip(theta[3] - gamma * log_lr, -300, 300)) * since
    log_inner = np.log1p(inner)
    kept = np.exp(-beta * log_inner)
    turn = fall * beta * kept * inner / (1 + inner)
    parts = (fall * (1 - kept), turn, fall * kept * log_inner, -turn * log_lr)
    by_row = np.stack([np.bincount(row, part, minlength=len(x)) for part in parts]).astype("float64")
    return by_row[0], by_row[1], by_row[2], by_row[3]


def start(x: Numbers, loss: Numbers) -> Numbers:
    """Variable projection over a grid of the other four. `[starts, 7]`"""
    thinned = slice(None, None, max(1, len(x) // 300))
    x, loss = x[thinned], loss[thinned]
    alpha = np.linspace(0.2, 0.9, 8)
    bends = grid(np.geomspace(0.05, 20.0, 6), np.array([0.3, 0.6, 1.0]), np.array([0.3, 0.6, 0.9]))
    rows, amounts, errors = [], [], []
    peak = float(x[:, 1 + PIECES : 1 + 2 * PIECES].max())
    for c, beta, gamma in bends:
        log_c = np.log(c) + gamma * np.log(peak)
        gain = _gain(np.array([0, 0, 0, log_c, 0, beta, gamma]), x)[0]
        basis = np.stack(
            [
                np.ones((len(alpha), len(x))),
                np.exp(-alpha[:, None] * np.log(x[:, 0])),
                np.broadcast_to(-gain, (len(alpha), len(x))),
            ],
            axis=1,
        )
        found, error = nonnegative_amounts(basis, loss)
        rows.append([[log_c, a, beta, gamma] for a in alpha])
        amounts.append(found)
        errors.append(error)
    return best_starts(np.concatenate(amounts), np.concatenate(errors), np.concatenate(rows), starts=4)


LAW = Law(
    name="multi-power",
    variables=("step", "lr"),
    parameters=("L0", "A", "B", "C", "alpha", "beta", "gamma"),
    positive=("L0", "A", "B", "C"),
    log_loss=log_loss,
    linearised=linearised,
    start=start,
    source="Luo et al. 2025, arXiv 2503.12811, eq. 1 and 2",
    scale=("step",),
    features=features,
    bounds={"beta": (1e-3, 20.0), "gamma": (-3.0, 3.0)},
)
