"""Integrals of a learning-rate schedule that the laws of loss curves read.

A log is thinned to every k-th step: between two rows the learning rate is taken to go straight. A curve whose first
row is at step s > 0 is taken to have warmed up linearly to it; its falls count from the first row on.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

PIECES = 32
"""Into how many pieces of equal fall a schedule is gathered at most."""


def per_curve(points: pd.DataFrame, integral: Callable[[Numbers, Numbers], Numbers]) -> Numbers:
    """`integral(step, lr) [rows, k]` of each curve, in the order of the rows of `points`, `[n, k]`.

    A curve is the rows of one `group`; it needs not be sorted by step.
    """
    codes = pd.factorize(points["group"])[0]
    step, lr = points["step"].to_numpy("float64"), points["lr"].to_numpy("float64")
    order = np.lexsort((step, codes))
    curves = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    parts = [integral(step[rows], lr[rows]) for rows in curves]
    result = np.empty((len(points), parts[0].shape[1]))
    result[order] = np.concatenate(parts)
    return result


def lr_sum(step: Numbers, lr: Numbers) -> Numbers:
    """Sum of the learning rates of all steps up to each row `[rows]`, warm-up included."""
    between = np.diff(step) * (lr[1:] + lr[:-1]) / 2
    return np.concatenate([[0.0], np.cumsum(between)]) + lr[0] * max(step[0], 1.0) / 2


def lr_momentum(step: Numbers, lr: Numbers, decay: float) -> Numbers:
    """S2 of Tissue et al. 2024: sum over steps of m_i = decay * m_{i-1} + (lr_{i-1} - lr_i), `[rows]`."""
    total, momentum, sums = 0.0, 0.0, np.zeros(len(step))
    for i, (gap, fall) in enumerate(zip(np.diff(step), -np.diff(lr), strict=True), start=1):
        left = decay**gap
        geometric = decay * (1 - left) / (1 - decay)
        total += momentum * geometric + fall / gap / (1 - decay) * (gap - geometric)
        momentum = left * momentum + fall / gap * (1 - left) / (1 - decay)
        sums[i] = total
    return sums


def lr_falls(step: Numbers, lr: Numbers) -> Numbers:
    """The falls of the learning rate in pieces `[rows, 3 * PIECES]`: how much of each has fallen by a row, the
    learning rate after it, and the sum of learning rates since. A piece that is not used falls by zero."""
    fall = lr[:-1] - lr[1:]
    size = np.abs(fall)
    before = np.cumsum(size) - size
    piece = np.minimum((before / max(size.sum(), 1e-300) * PIECES).astype(int), PIECES - 1)
    mine = np.where(np.arange(PIECES) == piece[:, None], 1.0, 0.0)
    total = lr_sum(step, lr)
    middle = (total[1:] + total[:-1]) / 2

    def so_far(amount: Numbers) -> Numbers:
        return np.concatenate([np.zeros((1, PIECES)), np.cumsum(amount[:, None] * mine, axis=0)])

    moved = so_far(size)
    since = np.where(moved > 0, total[:, None] - so_far(size * middle) / np.maximum(moved, 1e-300), 0.0)
    after = so_far(size * lr[1:])[-1] / np.maximum(moved[-1], 1e-300)
    at = np.broadcast_to(np.where(moved[-1] > 0, after, lr[0]), moved.shape)
    return np.concatenate([so_far(fall), at, np.maximum(since, 0.0)], axis=1)
