"""Mixtures of experts: routing that collapses onto few experts, and drops of assignments that jump."""

import numpy as np
import pandas as pd

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve, block_medians, curve_of
from logs.schema import Run, Segment, is_logged

DROPS = "router/drop_fraction"
ENTROPY = "router/entropy"
BALANCE = "router/load_balancing_loss"

JUMP = 3.0
"""Factor between the medians of the points before and after: schedules and learning move drops more slowly."""

SIDE = 5

WORTH_A_LOOK = 0.01
"""Share of assignments dropped below which even a surge costs nothing."""

HALVED = 0.5
"""Share of the experts in use, exp(entropy), at which routing counts as collapsed."""

UNBALANCED = 2.0
"""Load-balancing loss at which routing counts as collapsed: 1 where all experts get the same, their number where one
gets all (Fedus, Zoph and Shazeer, 2101.03961, eq. 4)."""


def routing_findings(run: Run, lineage: Run) -> list[Finding]:
    """All findings about routing. `lineage` is `run` flattened."""
    findings = []
    if (drops := curve_of(lineage, DROPS)) is not None:
        findings += drop_changes(drops, run)
    if (entropy := curve_of(lineage, ENTROPY)) is not None:
        findings += _collapse(entropy, np.exp(entropy.value), falls=True)
    if (balance := curve_of(lineage, BALANCE)) is not None:
        findings += _collapse(balance, balance.value, falls=False)
    return findings


def drop_changes(drops: Curve, run: Run) -> list[Finding]:
    """Where the dropped fraction jumps by a factor of three or more and stays, at least half of it between two
    neighbouring points. Where a segment begins in between, that is where."""
    if len(drops) < 2 * SIDE:
        return []
    log = np.log(np.maximum(drops.value, 1e-7))
    median = pd.Series(log).rolling(SIDE).median().to_numpy()
    change = np.full(len(log), np.nan)
    change[SIDE : len(log) - SIDE + 1] = median[2 * SIDE - 1 :] - median[SIDE - 1 : len(log) - SIDE]
    step = np.diff(log, prepend=log[0])
    with np.errstate(invalid="ignore"):
        at = np.flatnonzero(
            (np.abs(change) >= np.log(JUMP)) & (step * np.sign(change) >= 0.5 * np.abs(change))
        )
    return [_drop_change(drops, i, float(change[i]), run) for i in at.tolist()]


def _drop_change(drops: Curve, i: int, change: float, run: Run) -> Finding:
    before, after = (float(np.median(drops.value[lo:hi])) for lo, hi in ((i - SIDE, i), (i, i + SIDE)))
    begun = [s for s in run.segments if drops.step[i - 1] < s.first_step <= drops.step[i]]
    segment = begun[-1] if begun else None
    onset = segment.first_step if segment else int(drops.step[i])
    paired = _parent_and_child(run, segment) if segment else None
    if paired is not None:
        before, after = paired
    factor = before / max(after, 1e-7) if change < 0 else after / max(before, 1e-7)
    says = f"{DROPS} {before:.3g} -> {after:.3g} at step {onset:,}, {'down' if change < 0 else 'up'} by a factor of "
    says += f"{factor:.3g}" + (f": {segment.id} begins there" if segment else "")
    says += ", compared with its parent at the same steps" if paired is not None else ""
    surge = change > 0
    return Finding(
        kind="drop_surge" if surge else "drop_fall",
        severity="warning" if surge and after >= WORTH_A_LOOK else "info",
        says=says,
        onset_step=onset,
        peak_step=int(drops.step[i]),
        metric=DROPS,
        numbers={"before": before, "after": after, "factor": factor},
        rows=rows_around(drops.step, drops.value, i, i),
    )


def _parent_and_child(run: Run, child: Segment) -> tuple[float, float] | None:
    """Mean drop fractions of parent and child over the steps after the fork that the parent still logged."""
    rows = run.table[is_logged(run.table[DROPS]) & (run.table["step"] >= child.first_step)]
    parent = rows[rows["segment"] == child.parent]
    if not len(parent):
        return None
    own = rows[(rows["segment"] == child.id) & (rows["step"] <= parent["step"].max())]
    return (float(parent[DROPS].mean()), float(own[DROPS].mean())) if len(own) else None


def _collapse(curve: Curve, used: np.ndarray, falls: bool) -> list[Finding]:
    """Routing by the number of experts in use (`falls`) or by the load-balancing loss, over 20 stretches."""
    if len(curve) < 2 * SIDE:
        return []
    levels, _ = block_medians(Curve(curve.metric, curve.step, curve.x, curve.axis, used), 20)
    limit = HALVED * float(levels.max()) if falls else max(UNBALANCED, UNBALANCED * float(levels.min()))
    late = float(np.median(levels[-2:]))
    if (late >= limit) if falls else (late <= limit):
        return []
    onset = int(np.flatnonzero(used < limit if falls else used > limit)[0])
    what = "experts in use, exp(entropy)," if falls else "load-balancing loss"
    return [
        Finding(
            kind="routing_collapse",
            severity="severe",
            says=f"{what} {levels.max() if falls else levels.min():.3g} -> {late:.3g} at the end",
            onset_step=int(curve.step[onset]),
            peak_step=int(curve.step[int(np.argmin(used) if falls else np.argmax(used))]),
            metric=curve.metric,
            numbers={"best": float(levels.max() if falls else levels.min()), "late": late},
            rows=rows_around(curve.step, curve.value, onset, len(curve) - 1),
        )
    ]
