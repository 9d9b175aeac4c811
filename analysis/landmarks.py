"""Where the gradient norm peaks first, where it is lowest, and its late level."""

from itertools import pairwise
from typing import Any

import numpy as np
from scipy.signal import find_peaks

from analysis.curves import has_metric, points
from logs.schema import Run

FEWEST_POINTS = 8


def grad_norm_landmarks(run: Run, bins: int = 40) -> dict[str, Any]:
    """First peak, minimum and late level of the gradient norm, and the steps and fractions where they fall.

    Read off medians in `bins` logarithmic bins of steps done, so that neither single steps nor uneven
    sampling decide; the first peak must stand 10 % above what surrounds it. The late level is the median
    of the last tenth of what is logged.
    """
    landmarks: dict[str, Any] = {"first_peak": None, "minimum": None, "late_level": None, "reason": None}
    if not has_metric(run, "grad_norm"):
        return landmarks | {"reason": "the log has no gradient norm"}
    rows = points(run, "grad_norm")
    done, norm = rows["done"].to_numpy("float64"), rows["value"].to_numpy("float64")
    if len(norm) < FEWEST_POINTS or np.ptp(norm) == 0 or (norm <= 0).any():
        return landmarks | {"reason": "the gradient norm has too few, constant or non-positive points"}
    edges = np.geomspace(done[0], done[-1] * (1 + 1e-9), bins + 1)
    parts = [(done >= lo) & (done < hi) for lo, hi in pairwise(edges)]
    at = np.array([np.median(done[part]) for part in parts if part.any()])
    level = np.array([np.median(norm[part]) for part in parts if part.any()])
    peaks, _ = find_peaks(np.log(np.concatenate([[level.min()], level])), prominence=np.log(1.1))
    first = int(peaks[0]) - 1 if len(peaks) else 0
    lowest = first + int(np.argmin(level[first:]))
    late = done > done[-1] - 0.1 * (done[-1] - done[0])

    def landmark(value: float, steps_done: float) -> dict[str, Any]:
        planned = run.facts.steps_planned
        return {
            "value": float(value),
            "step": round(float(steps_done)) - 1,
            "fraction": float(steps_done / planned) if planned else None,
        }

    return {
        "first_peak": landmark(level[first], at[first]),
        "minimum": landmark(level[lowest], at[lowest]),
        "late_level": landmark(np.median(norm[late]), np.median(done[late])),
        "reason": None,
    }
