"""What the gradient norm says: it grows, or it dies."""

import numpy as np

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve, block_medians

GROWN, GROWN_FAR = 3.0, 10.0
"""Factors above its lowest level. Marin 535B, healthy by its loss, stands at 4 at half of its run; the run that
diverged in bfloat16 of the public ALiBi logs passed 10 within 200 steps and went to 500."""

DEAD = 0.01
"""Share of its usual value below which a gradient is gone."""

FEWEST = 10


def grad_norm_findings(curve: Curve) -> list[Finding]:
    """Growth of the late level over the lowest one, and a level that falls to nothing."""
    if len(curve) < FEWEST:
        return []
    levels, _ = block_medians(curve, 20)
    bounds = np.linspace(0, len(curve), len(levels) + 1).astype(int)
    return [f for f in (_growth(curve, levels, bounds), _collapse(curve, bounds)) if f is not None]


def _growth(curve: Curve, levels: np.ndarray, bounds: np.ndarray) -> Finding | None:
    positive = np.where(levels > 0, levels, np.inf)
    lowest = int(np.argmin(positive[:-1]))
    if not np.isfinite(positive[lowest]):
        return None
    late = float(np.median(levels[-2:])) if lowest < len(levels) - 2 else float(levels[-1])
    factor = late / float(levels[lowest])
    if factor < GROWN:
        return None
    above = np.flatnonzero(levels[lowest:] >= GROWN * levels[lowest])
    onset, last = int(bounds[lowest + int(above[0])]), len(curve) - 1
    peak = onset + int(np.argmax(curve.value[onset:]))
    return Finding(
        kind="grad_norm_growth",
        severity="warning" if factor >= GROWN_FAR else "info",
        says=f"{curve.metric} {levels[lowest]:.3g} at steps {curve.step[bounds[lowest]]:,}-"
        f"{curve.step[bounds[lowest + 1] - 1]:,} -> {late:.3g} at the end, {factor:.3g} times as much; highest "
        f"{curve.value[peak]:.3g} at step {curve.step[peak]:,}",
        onset_step=int(curve.step[onset]),
        peak_step=int(curve.step[peak]),
        metric=curve.metric,
        numbers={"lowest": float(levels[lowest]), "late": late, "factor": factor},
        rows=rows_around(curve.step, curve.value, onset, last),
    )


def _collapse(curve: Curve, bounds: np.ndarray) -> Finding | None:
    usual = float(np.median(curve.value))
    usual = usual or float(np.median(curve.value[curve.value > 0])) if (curve.value > 0).any() else 0.0
    gone = curve.value < DEAD * usual
    runs = np.flatnonzero(np.diff(np.concatenate([[False], gone, [False]]).astype("int8")))
    lengths = runs[1::2] - runs[::2]
    if not len(lengths) or lengths.max() < max(3, len(curve) // 100):
        return None
    at = int(np.argmax(lengths))
    first, end = int(runs[2 * at]), int(runs[2 * at + 1])
    return Finding(
        kind="grad_norm_collapse",
        severity="warning",
        says=f"{curve.metric} below {DEAD * usual:.3g}, 1 % of its usual {usual:.3g}, in {end - first} logged points "
        f"from step {curve.step[first]:,} on",
        onset_step=int(curve.step[first]),
        peak_step=int(curve.step[first + int(np.argmin(curve.value[first:end]))]),
        end_step=int(curve.step[end]) if end < len(curve) else None,
        metric=curve.metric,
        numbers={"usual": usual, "points": end - first},
        rows=rows_around(curve.step, curve.value, first, end - 1),
    )
