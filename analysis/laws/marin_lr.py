"""Best learning rate by Marin's heuristic: lr(T, d, B) = c * T^alpha * d^beta * sqrt(B).

T is the tokens of the run, d the hidden width, B the tokens of a batch. Marin, `moe_hero_fsdp/heuristic.py` at
020b7dc3: adam_lr = 0.087571 * T^-0.3461 * d^-0.3448 * sqrt(B), at most 0.05. The power of the batch is taken as known.
"""

import numpy as np

from analysis.laws.forms import sum_of_powers
from analysis.laws.law import Law, Numbers


def terms(x: Numbers) -> Numbers:
    """c * T^alpha * d^beta as `[1, n, (log c, alpha, beta)]`; x is (T, d, B)."""
    log_t, log_width, _ = np.log(x.T)
    return sum_of_powers.columns(len(x), 3, _0=1, _1=log_t, _2=log_width)[None]


def log_lr(theta: Numbers, x: Numbers) -> Numbers:
    """log lr `[batch, n]` for theta `[batch, 3]`."""
    return sum_of_powers.log_loss(terms)(theta, x) + np.log(x[:, 2]) / 2


def linearised(theta: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """log lr `[batch, n]` and its derivative `[batch, 3, n]`."""
    value, jacobian = sum_of_powers.linearised(terms)(theta, x)
    return value + np.log(x[:, 2]) / 2, jacobian


def start(x: Numbers, lr: Numbers) -> Numbers:
    """Least squares in logarithms, `[3]`."""
    return np.linalg.lstsq(terms(x)[0], np.log(lr) - np.log(x[:, 2]) / 2, rcond=None)[0]


LAW = Law(
    name="marin-lr",
    variables=("d", "width", "batch"),
    parameters=("c", "alpha", "beta"),
    positive=("c",),
    log_loss=log_lr,
    linearised=linearised,
    start=start,
    source="Marin, moe_hero_fsdp/heuristic.py at 020b7dc3",
    scale=("d",),
    response="lr",
)
