"""What the log itself has too much of or lacks: repeated steps, missing stretches, missing values, an early end."""

import numpy as np

from analysis.diagnosis.finding import Finding
from analysis.diagnosis.trend import Curve
from logs.schema import AXES, Run, is_logged
from logs.splice import GAP_FACTOR

REGULAR = 0.9
"""Share of equal distances from which on a log counts as regular, and a longer distance as a hole."""

MOSTLY_MISSING = 0.1
"""Share of the steps missing from which on conclusions about the whole run suffer."""

FINISHED = 0.98


def coverage_findings(run: Run, curve: Curve | None) -> list[Finding]:
    """`run` with its raw rows; `curve`: the loss, by whose points missing stretches are found."""
    found = [
        _duplicated(run),
        _missing(run, curve) if curve else None,
        _ends_early(run),
    ]
    return [finding for finding in found if finding is not None]


def _duplicated(run: Run) -> Finding | None:
    """Steps that one segment logged twice, and steps gone over again after a restart, with values that differ."""
    table = run.table
    step, segment = table["step"].to_numpy("int64"), table["segment"].to_numpy(dtype=object)
    if len(run.segments) <= 1 and (step[1:] > step[:-1]).all():
        return None
    ends = [s.last_step for s in run.segments]
    again = [
        (child.first_step, parent_end)
        for child, parent_end in zip(run.segments[1:], ends[:-1], strict=True)
        if parent_end >= child.first_step
    ]
    same = (step[1:] == step[:-1]) & (segment[1:] == segment[:-1])
    cells = [is_logged(table[name]) for name in table.columns[len(AXES) :]]
    twice = [same & cell[1:] & cell[:-1] for cell in cells]
    repeated = np.unique(step[1:][np.any(twice, axis=0)]) if twice else np.array([], int)
    if not again and not len(repeated):
        return None
    parts = [f"{len(repeated)} steps logged twice, the first is {repeated[0]:,}"] if len(repeated) else []
    parts += [f"{len(again)} restarts went over steps again ({_ranges(again)})"] if again else []
    first = min([*repeated[:1].tolist(), *(lo for lo, _ in again)])
    last = max([*repeated[-1:].tolist(), *(hi for _, hi in again)])
    return Finding(
        kind="duplicated_steps",
        severity="info",
        says="; ".join(parts) + "; the rows logged last count",
        onset_step=first,
        end_step=last + 1,
        numbers={"repeated": len(repeated), "gone_over": [list(pair) for pair in again[:20]]},
    )


def _ranges(pairs: list[tuple[int, int]], most: int = 5) -> str:
    shown = ", ".join(f"{lo:,}-{hi:,}" for lo, hi in pairs[:most])
    return shown + f" and {len(pairs) - most} more" * (len(pairs) > most)


def _missing(run: Run, curve: Curve) -> Finding | None:
    """Holes in the steps at which the loss was logged; values that the log names as missing say so here."""
    distance = np.diff(curve.step)
    if len(distance) < 8:
        return None
    stride = curve.stride
    regular = (distance == stride).mean() >= REGULAR
    at = np.flatnonzero(distance > (stride if regular else GAP_FACTOR * stride))
    if not len(at):
        return None
    holes = [(int(curve.step[i]) + stride, int(curve.step[i + 1]) - 1) for i in at]
    share = float((distance[at] - stride).sum() / max(1, curve.step[-1] - curve.step[0]))
    said = [q for q in run.quirks if q.kind == "text_nan"]
    kind = "missing_values" if said else "missing_stretch"
    says = (
        f"{curve.metric} was not logged in {len(holes)} stretches, {share:.0%} of the steps: {_ranges(holes)}"
    )
    says += (
        f". The log says `nan` there for want of a value ({said[0].where}): no loss was NaN" if said else ""
    )
    return Finding(
        kind=kind,
        severity="info" if said or not regular or share < MOSTLY_MISSING else "warning",
        says=says,
        onset_step=holes[0][0],
        end_step=holes[-1][1] + 1,
        metric=curve.metric,
        numbers={"stretches": [list(hole) for hole in holes[:50]], "share": share},
    )


def _ends_early(run: Run) -> Finding | None:
    planned = run.facts.steps_planned
    if not planned:
        return None
    last = int(run.table["step"].max())
    done = (last + 1 - (run.facts.steps_from or 0)) / planned
    if done >= FINISHED:
        return None
    return Finding(
        kind="ends_early",
        severity="info",
        says=f"the log ends at step {last:,}, {done:.0%} of the {planned:,} planned",
        onset_step=last,
        numbers={"done": done},
    )
