"""Jumps of the learning rate that its schedule before and after does not explain."""

import numpy as np

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve

JUMP = 0.05
"""Share of the peak learning rate: schedules move by less between two logged points, or by as much as beside."""

STEEPER = 3.0
"""Factor over the steeper of the two neighbouring slopes: a corner of a schedule changes slope, and does not jump."""

MOST = 20
"""Jumps listed; a schedule by steps that has more is one."""


def lr_steps(curve: Curve) -> list[Finding]:
    """Where the learning rate jumps between two logged points. Down is how schedules by steps look; up means a
    restarted or rewound schedule, and is a warning."""
    if len(curve) < 4:
        return []
    lr = curve.value
    slope = np.abs(np.diff(lr) / np.diff(curve.step))
    beside = np.maximum(np.concatenate([[0.0], slope[:-1]]), np.concatenate([slope[1:], [0.0]]))
    jump = np.diff(lr)
    at = np.flatnonzero((np.abs(jump) > JUMP * lr.max()) & (slope > STEEPER * beside))
    at = at[(at > 0) & (at < len(jump) - 1)]  # at an end one neighbour is missing
    findings = []
    for i in at[:MOST].tolist():
        up = bool(jump[i] > 0)
        findings.append(
            Finding(
                kind="lr_step",
                severity="warning" if up else "info",
                says=f"{curve.metric} {lr[i]:.4g} at step {curve.step[i]:,} -> {lr[i + 1]:.4g} at step "
                f"{curve.step[i + 1]:,}, {'up' if up else 'down'} by {abs(jump[i]) / lr.max():.0%} of its peak",
                onset_step=int(curve.step[i + 1]),
                peak_step=int(curve.step[i + 1]),
                metric=curve.metric,
                numbers={"before": float(lr[i]), "after": float(lr[i + 1])},
                rows=rows_around(curve.step, lr, i, i + 1),
            )
        )
    return findings
