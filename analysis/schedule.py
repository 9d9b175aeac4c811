"""The learning-rate schedule of a run, recovered from its log alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.curves import has_metric, points
from logs.schema import Run

Numbers = NDArray[np.float64]

TOLERANCE = 2e-3
"""Largest departure from a shape, relative to the peak, that still counts as the shape; above float32
rounding and below any schedule change one would want to hear of."""


def recover_schedule(run: Run) -> dict[str, Any]:
    """Warm-up length, peak, shape and final fraction of the learning rate in the log `lr`.

    The warm-up line and the decay line are fitted apart; where they meet is the end of the warm-up, so the
    answer does not depend on the peak's own step having been sampled. Steps are zero-based.

    Returns:
        `{shape, peak_lr, warmup_steps, final_fraction, total_steps, departures, reason}`; unknown values are
        None and `reason` says why. `shape` is linear, constant or unrecognised.
    """
    unknown: dict[str, Any] = dict.fromkeys(
        ("shape", "peak_lr", "warmup_steps", "final_fraction", "total_steps"), None
    )
    unknown |= {"departures": [], "reason": None}
    if not has_metric(run, "lr"):
        return unknown | {"reason": "the log has no learning rate"}
    rows = points(run, "lr")
    step, lr = rows["step"].to_numpy("float64"), rows["value"].to_numpy("float64")
    top = int(np.argmax(lr))
    warm, late = _warmup_line(step[: top + 1], lr[: top + 1]), _line(step[top + 1 :], lr[top + 1 :])
    if late is None or lr[top] <= 0:
        return unknown | {"reason": "fewer than two points after the highest learning rate"}
    warmup, peak = _corner(warm, late, step[top], lr[top])
    total = run.facts.steps_planned
    expected = np.where(
        step < warmup, np.polyval(warm, step) if warm is not None else peak, np.polyval(late, step)
    )
    departs = np.abs(expected - lr) > TOLERANCE * peak
    linear = not departs[step > warmup].any()
    level = abs(late[0]) * step[-1] < TOLERANCE * peak
    return {
        "shape": ("constant" if level else "linear") if linear else "unrecognised",
        "peak_lr": float(peak),
        "warmup_steps": round(float(warmup)),
        "final_fraction": float(np.polyval(late, total) / peak) if linear and total else None,
        "total_steps": total,
        "departures": [int(s) for s in step[departs][:20]],
        "reason": None if linear else "after its peak the learning rate is not a straight line",
    }


def _line(x: Numbers, y: Numbers) -> Numbers | None:
    """Slope and intercept through the points, or None with fewer than two."""
    if len(x) < 2 or np.ptp(x) == 0:
        return None
    return np.polyfit(x - x[0], y, 1) @ np.array([[1.0, -x[0]], [0.0, 1.0]])


def _warmup_line(x: Numbers, y: Numbers) -> Numbers | None:
    """The line through the rising part, without the highest point (it may already lie on the decay)."""
    return _line(x[:-1], y[:-1]) if len(x) > 2 else None


def _corner(warm: Numbers | None, late: Numbers, top_step: float, top_lr: float) -> tuple[float, float]:
    """Where the warm-up and the decay line meet; the highest logged point where there is no warm-up line."""
    if warm is None or warm[0] <= late[0]:
        return top_step, top_lr
    at = (late[1] - warm[1]) / (warm[0] - late[0])
    return at, float(np.polyval(late, at))
