"""Fewer points of a long log for drawing, without losing a spike, and where a drawn line must break."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def keep_extremes(y: Numbers, most: int) -> NDArray[np.intp]:
    """Indices of at most about `most` points that keep each stretch's first, lowest, highest and last point.

    A spike of one step survives any reduction, unlike with strides or averages. `y` is in drawing order and
    finite. Returns all indices when there are no more than `most`.
    """
    n = len(y)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, max(1, most // 4) + 1).astype(int)
    kept = {
        index
        for lo, hi in pairwise(edges)
        for index in (lo, lo + int(np.argmin(y[lo:hi])), lo + int(np.argmax(y[lo:hi])), hi - 1)
    }
    return np.array(sorted(kept))


def break_at_holes(x: Numbers, fraction: float = 0.015) -> NDArray[np.intp]:
    """Indices before which a drawn line must break: gaps of more than `fraction` of the span of `x`
    that are also ten times the usual gap, so that nothing is drawn where nothing was logged."""
    if len(x) < 3:
        return np.array([], dtype=np.intp)
    gaps = np.diff(x)
    wide = (gaps > fraction * (x[-1] - x[0])) & (gaps > 10 * np.median(gaps))
    return np.flatnonzero(wide) + 1
