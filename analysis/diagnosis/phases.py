"""The phases of a run: fast fall, slow fall, plateau, decay."""

from typing import Any

import numpy as np

from analysis.diagnosis.trend import Curve, block_medians

KNEE = 0.8
"""Share of the whole fall of the loss that the fast fall covers."""

BLOCKS, POINTS_PER_BLOCK = 40, 4

STEEPER = 2.0
"""Factor by which the loss falls faster again in the decay than before it."""

FLAT = 0.002
"""Fall per tenth of the log, as a share of the loss, below which it lies on a plateau."""

LONG = 0.1
"""Share of the log that a plateau has at least."""


def phases(curve: Curve, lr: Curve | None) -> list[dict[str, Any]]:
    """`{name, first_step, last_step}` of each phase, in order, without gaps.

    The fast fall ends where four fifths of the whole fall are done. A plateau is a stretch of a tenth of the log or
    more in which the loss falls by less than .2 % per tenth. A decay is the end of a log in which the learning rate
    falls after a stretch at which it was constant or, where no learning rate is logged, in which the loss falls
    twice as fast again as before. A log too short to tell has one phase, by what its loss did.
    """
    if len(curve) == 0:
        return []
    if len(curve) < 10:
        fell = bool(curve.value[-1] < curve.value[0])
        return [_phase("slow fall" if fell else "plateau", curve, 0, len(curve) - 1)]
    levels, _ = block_medians(curve, max(10, min(BLOCKS, len(curve) // POINTS_PER_BLOCK)))
    bounds = np.linspace(0, len(curve), len(levels) + 1).astype(int)
    names = np.full(len(levels), "slow fall", dtype=object)
    names[_flat(levels, len(levels))] = "plateau"
    start = _decay_start(curve, lr, levels, bounds)
    if start is not None:
        names[start:] = "decay"
    knee = _knee(curve)
    found = [_phase("fast fall", curve, 0, knee - 1)] if knee else []
    for name, lo, hi in zip(names, bounds[:-1], bounds[1:], strict=True):
        first, last = max(int(lo), knee), int(hi) - 1
        if last < first:
            continue
        if found and found[-1]["name"] == name:
            found[-1]["last_step"] = int(curve.step[last])
        else:
            found.append(_phase(str(name), curve, first, last))
    return found


def _knee(curve: Curve) -> int:
    """Index of the first point at which `KNEE` of the whole fall is done; 0 where the loss does not fall."""
    start, lowest = float(curve.trend[0]), float(curve.trend.min())
    return int(np.argmax(curve.trend <= start - KNEE * (start - lowest))) if lowest < start else 0


def _phase(name: str, curve: Curve, first: int, last: int) -> dict[str, Any]:
    return {"name": name, "first_step": int(curve.step[first]), "last_step": int(curve.step[last])}


def _flat(levels: np.ndarray, count: int) -> np.ndarray:
    """Blocks within a stretch, of a tenth of the log or more, over which the loss falls too little."""
    reach = max(2, round(LONG * count))
    flat = np.zeros(count, bool)
    for i in range(count - reach):
        if levels[i] - levels[i + reach] < FLAT * abs(levels[i]):
            flat[i : i + reach + 1] = True
    return flat


def _decay_start(curve: Curve, lr: Curve | None, levels: np.ndarray, bounds: np.ndarray) -> int | None:
    """The block at which the decay begins, or None."""
    if lr is not None and len(lr) >= 10:
        at = np.interp(curve.step[bounds[:-1]], lr.step, lr.value)
        top = at >= 0.99 * at.max()
        last = int(np.flatnonzero(top)[-1])
        constant = top.sum() >= 0.2 * len(levels)
        return last + 1 if constant and last + 1 < len(levels) and at[-1] < 0.7 * at.max() else None
    fall = -np.diff(levels)
    tail = max(3, len(levels) // 10)
    before = fall[len(fall) // 2 : -tail]
    if not len(before) or np.median(fall[-tail:]) < STEEPER * max(float(np.median(before)), 1e-12):
        return None
    noise = float(np.median(np.abs(before - np.median(before)))) * 1.4826
    if np.median(fall[-tail:]) < np.median(before) + 3 * noise / np.sqrt(tail):
        return None
    return len(levels) - tail
