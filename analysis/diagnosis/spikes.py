"""Loss spikes: excursions above the trend, with onset, peak and recovery."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.diagnosis.finding import Finding, Severity, rows_around
from analysis.diagnosis.trend import Curve

STANDS_OUT = 6.0
"""Robust standard deviations at which a point counts: one in 10^9 by chance under normal noise. The usual rules
take 6 (OLMo-core) or 7 (OLMo 2) plain ones, which a spike itself inflates."""

BEGINS, RECOVERED = 3.0, 1.0
"""A spike begins at its first point 3 standard deviations above the trend, a distance that by chance occurs once
in 700 points, and is over at the first point back within one."""

MATERIAL = 0.01
"""Share of the trend that an excursion must reach: a smooth log has scatter so small that anything stands out."""

SEVERE, NOTABLE = 0.10, 0.05
"""Shares of all that the run learned, first level to lowest, that a spike undoes at its peak."""

FEWEST = 32
"""Points below which no trend can be told from its noise."""

SIGMA_WINDOW, SIGMAS = 128, 6.0


@dataclass(frozen=True)
class Spike:
    """Indices into a curve's points: `end` is the first point back at the trend, or the number of points."""

    onset: int
    peak: int
    end: int


def find_spikes(curve: Curve) -> list[Spike]:
    """The excursions of `curve` above its trend, by hysteresis: they must reach `STANDS_OUT` and `MATERIAL`, and
    stretch to where the curve is back; two with a single point between them are one."""
    if len(curve) < FEWEST:
        return []
    z = curve.z
    excess = curve.value - curve.trend
    core = (z >= STANDS_OUT) & (excess >= MATERIAL * np.abs(curve.trend))
    if not core.any():
        return []
    spikes = [
        _spike(z, excess, first, end) for first, end in _stretches(z > RECOVERED) if core[first:end].any()
    ]
    return [spike for spike in spikes if spike is not None]


def _stretches(inside: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and past-the-last index of each stretch of True; a gap of one is bridged."""
    bridged = inside.copy()
    bridged[1:-1] |= inside[:-2] & inside[2:]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], bridged, [False]]).astype("int8")))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _spike(z: NDArray[np.float64], excess: NDArray[np.float64], first: int, end: int) -> Spike | None:
    peak = first + int(np.argmax(excess[first:end]))
    before = np.flatnonzero(z[first : peak + 1] <= BEGINS)  # scatter ahead of the rise does not belong to it
    onset = first + (int(before[-1]) + 1 if len(before) else 0)
    return Spike(onset, peak, end) if onset <= peak else None


def spike_findings(curve: Curve) -> list[Finding]:
    """The spikes as findings, each ranked by how much of what was learned it undoes.

    At a log of every step, an excursion of a single step says something of its batch and nothing of the model:
    the loss is computed before the update, and the next one is as before. Such are `odd_batch`.
    """
    findings = []
    for spike in find_spikes(curve):
        excess = float(curve.value[spike.peak] - curve.trend[spike.peak])
        undone = excess / max(float(curve.trend.max() - curve.trend.min()), excess)
        high = int((curve.z[spike.onset : spike.end] > BEGINS).sum())
        single = curve.stride == 1 and high == 1 and spike.end < len(curve)
        findings.append(_finding(curve, spike, excess, undone, single))
    return findings


def _finding(curve: Curve, spike: Spike, excess: float, undone: float, single: bool) -> Finding:
    onset, peak = int(curve.step[spike.onset]), int(curve.step[spike.peak])
    end = int(curve.step[spike.end]) if spike.end < len(curve) else None
    base, top, z = float(curve.trend[spike.peak]), float(curve.value[spike.peak]), float(curve.z[spike.peak])
    says = f"{curve.metric} {base:.3f} -> {top:.3f} at step {peak:,} ({z:.0f} standard deviations), "
    says += f"{undone:.0%} of what was learned undone; "
    says += "not back when the log ends" if end is None else f"back at the trend by step {end:,}"
    severity: Severity = "info" if single or undone < NOTABLE else "severe" if undone >= SEVERE else "warning"
    return Finding(
        kind="odd_batch" if single else "spike",
        severity=severity,
        says=says,
        onset_step=onset,
        peak_step=peak,
        end_step=end,
        metric=curve.metric,
        numbers={
            "trend": base,
            "peak": top,
            "excess": excess,
            "z": z,
            "share_undone": undone,
            "window": {"width": curve.window, "of": curve.axis},
        },
        rows=rows_around(curve.step, curve.value, spike.onset, min(spike.end, len(curve) - 1)),
    )


def six_sigma_score(curve: Curve) -> dict[str, Any]:
    """The score that others report: points above the mean of the last 128 by 6 standard deviations (OLMo-core,
    `stability_monitor.py`), as a share of the points that have 128 before them. Where only every k-th step is
    logged, 128 points are 128 k steps, and scores of differently thinned logs are not comparable."""
    before = pd.Series(curve.value).shift(1).rolling(SIGMA_WINDOW)
    scored = max(0, len(curve) - SIGMA_WINDOW)
    with np.errstate(invalid="ignore"):
        above = curve.value > (before.mean() + SIGMAS * before.std(ddof=0)).to_numpy()
    count = int(above.sum())
    return {
        "rule": "value > mean + 6 standard deviations of the last 128 points",
        "points": scored,
        "above": count,
        "share": count / scored if scored else None,
        "steps": [int(step) for step in curve.step[above][:20]],
        "every_kth_step": curve.stride,
        "comparable": curve.stride == 1,
    }
