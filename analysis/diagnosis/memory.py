"""Memory that grows: leaks."""

import numpy as np

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve, block_medians

GROWN = 0.05
"""Growth over the log, as a share: allocators settle within a few percent."""

BLOCKS = 10


def is_memory(metric: str) -> bool:
    """Whether a metric counts memory in use; a running maximum rises by nature and is none."""
    name = metric.lower()
    return any(word in name for word in ("mem", "rss", "vram")) and not any(
        word in name for word in ("max", "peak", "bandwidth", "clock", "membership")
    )


def memory_growth(curve: Curve) -> Finding | None:
    """Memory higher in each tenth of the log than in the one before, the first tenth (warming up) left out.

    One tenth may stay level; a cache that fills and then rests is no leak.
    """
    if len(curve) < 4 * BLOCKS:
        return None
    levels, _ = block_medians(curve, BLOCKS)
    rises = np.diff(levels[1:])
    growth = float(levels[-1] / levels[1] - 1) if levels[1] > 0 else 0.0
    if (rises > 0).sum() < len(rises) - 1 or (rises < 0).any() or growth < GROWN:
        return None
    return Finding(
        kind="memory_growth",
        severity="warning",
        says=f"{curve.metric} {levels[1]:.4g} -> {levels[-1]:.4g}, up {growth:.0%} and rising in "
        f"{int((rises > 0).sum())} of {len(rises)} tenths of the log",
        onset_step=int(curve.step[len(curve) // BLOCKS]),
        peak_step=int(curve.step[int(np.argmax(curve.value))]),
        metric=curve.metric,
        numbers={"early": float(levels[1]), "late": float(levels[-1]), "growth": growth},
        rows=rows_around(curve.step, curve.value, len(curve) // BLOCKS, len(curve) - 1),
    )
