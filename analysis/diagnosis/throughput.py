"""Speed: drops at hand-overs, stalls, lasting slow-downs, a loader that training waits for, idle hours."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve, block_medians, curve_of, first_metric
from logs.schema import Run

RATES = ("tokens_per_second", "samples per second", "samples_per_second", "mfu")
TIMES = ("step_time", "iteration-time")

SLOW = 0.8
"""Share of the usual speed below which a step is slow, if it also stands out of the scatter."""

STANDS_OUT = 6.0

SLOW_AT_HANDOVER = 0.95
"""The same at the first point after a hand-over: one place to look at, so that less is needed to believe it."""

HANDOVER_STEPS = 10
"""Steps after a segment's start within which a first point belongs to it."""

MOSTLY = 0.6
"""Share of the slow steps that must come at even distances, and of the steps at these distances that must be
slow, for the distance to be a schedule."""

COSTLY = 0.05
"""Share of all time that slow steps may cost before it is worth work."""

WAITS = 0.2
"""Share of a step's time spent waiting for data: loaders that keep up are near zero."""

IDLE_SECONDS = 600.0
"""Time between two logged rows, beyond what their steps take, that counts as standing still."""

FEWEST = 8


@dataclass(frozen=True)
class Slow:
    """Past slow steps: first and past-the-last index, and whether a hand-over is why."""

    first: int
    end: int
    segment: str | None


def throughput_findings(run: Run, lineage: Run) -> list[Finding]:
    """All findings about speed. `lineage` is `run` flattened; the segments are taken from `run`."""
    findings = []
    speed = speed_of(lineage)
    if speed is not None and len(speed) >= FEWEST:
        findings += _drops(run, speed)
        findings += [f for f in [_slow_down(speed)] if f is not None]
    findings += [f for f in (_waits(lineage), _stall(lineage)) if f is not None]
    return findings


def speed_of(run: Run) -> Curve | None:
    """The first rate of `RATES`, or the inverse of the first time of `TIMES`; None if neither was logged."""
    if name := first_metric(run, RATES):
        curve = curve_of(run, name)
    elif name := first_metric(run, TIMES):
        curve = curve_of(run, name)
        if curve is not None and (curve.value > 0).all():
            curve = replace(curve, metric=f"1 / {name}", value=1 / curve.value)
    else:
        return None
    return curve if curve is not None and (curve.value > 0).all() else None


def _drops(run: Run, speed: Curve) -> list[Finding]:
    share = speed.value / speed.trend
    slow = (share < SLOW) & (speed.z < -STANDS_OUT)
    starts = {segment.id: segment.first_step for segment in run.segments[1:]}
    at_handover: dict[int, str] = {}
    for name, first in starts.items():
        i = int(np.searchsorted(speed.step, first))
        if i < len(speed) and speed.step[i] <= first + HANDOVER_STEPS:
            usual = (
                float(np.median(speed.value[i + 1 : i + 16])) if i + 4 < len(speed) else float(speed.trend[i])
            )
            if speed.value[i] < SLOW_AT_HANDOVER * usual:
                at_handover[i] = name
                slow[i] = False
    slow[0] = False  # the first step compiles
    findings = [_handover(speed, i, name) for i, name in at_handover.items()]
    return findings + ([_slow_steps(speed, slow)] if slow.any() else [])


def _handover(speed: Curve, i: int, segment: str) -> Finding:
    usual = float(np.median(speed.value[i + 1 : i + 16]))
    end = next(
        (j for j in range(i + 1, min(i + 16, len(speed))) if speed.value[j] >= SLOW_AT_HANDOVER * usual), None
    )
    return Finding(
        kind="handover_drop",
        severity="info",
        says=f"{speed.metric} {speed.value[i]:.4g} at step {speed.step[i]:,}, {speed.value[i] / usual:.0%} of the "
        f"{usual:.4g} that follow: {segment} begins there",
        onset_step=int(speed.step[i]),
        peak_step=int(speed.step[i]),
        end_step=int(speed.step[end]) if end is not None else None,
        metric=speed.metric,
        numbers={"value": float(speed.value[i]), "usual": usual, "segment": segment},
        rows=rows_around(speed.step, speed.value, i, i),
    )


def _slow_steps(speed: Curve, slow: NDArray[np.bool_]) -> Finding:
    """The slow steps together; those that come at even distances are what the run does on purpose."""
    at = np.flatnonzero(slow)
    cost = (speed.trend[at] / speed.value[at] - 1) / len(speed)
    worst = int(at[np.argmin(speed.value[at] / speed.trend[at])])
    every, regular = _regular(speed.step[at])
    lost = float(cost[~regular].sum())
    says = f"{len(at)} of {len(speed)} logged points below {SLOW:.0%} of the usual {speed.metric}, the worst "
    says += f"{speed.value[worst] / speed.trend[worst]:.0%} at step {speed.step[worst]:,}; {cost.sum():.1%} of the time"
    if every:
        says += f"; {int(regular.sum())} of them every {every:,} steps, as evaluations or checkpoints come"
    return Finding(
        kind="throughput_drop",
        severity="warning" if lost > COSTLY else "info",
        says=says,
        onset_step=int(speed.step[at[0]]),
        peak_step=int(speed.step[worst]),
        end_step=int(speed.step[at[-1] + 1]) if at[-1] + 1 < len(speed) else None,
        metric=speed.metric,
        numbers={
            "points": len(at),
            "steps": [int(s) for s in speed.step[at][:50]],
            "time_lost": float(cost.sum()),
            "time_lost_irregularly": lost,
            "every": every,
        },
        rows=rows_around(speed.step, speed.value, worst, worst),
    )


def _regular(step: NDArray[np.int64]) -> tuple[int | None, NDArray[np.bool_]]:
    """The period at which most of the steps come, or None, and which of them do."""
    none = np.zeros(len(step), bool)
    if len(step) < 4:
        return None, none
    distance, count = np.unique(np.diff(step), return_counts=True)
    period = int(distance[np.argmax(count)])
    if period < 2:
        return None, none
    phase, often = np.unique(step % period, return_counts=True)
    regular = step % period == phase[np.argmax(often)]
    due = (step[-1] - step[0]) // period + 1
    return (period, regular) if regular.sum() >= MOSTLY * max(len(step), due) else (None, none)


def _slow_down(speed: Curve) -> Finding | None:
    if len(speed) < 40:
        return None
    levels, _ = block_medians(speed, 20)
    best, late = int(np.argmax(levels)), float(np.median(levels[-2:]))
    if late >= SLOW * levels[best] or best >= len(levels) - 2:
        return None
    bounds = np.linspace(0, len(speed), len(levels) + 1).astype(int)
    below = best + int(np.flatnonzero(levels[best:] < SLOW * levels[best])[0])
    return Finding(
        kind="slow_down",
        severity="warning",
        says=f"{speed.metric} {levels[best]:.4g} around step {speed.step[bounds[best]]:,} -> {late:.4g} at the end, "
        f"{late / levels[best]:.0%} of it",
        onset_step=int(speed.step[bounds[below]]),
        metric=speed.metric,
        numbers={"best": float(levels[best]), "late": late},
        rows=rows_around(speed.step, speed.value, int(bounds[below]), len(speed) - 1),
    )


def _waits(run: Run) -> Finding | None:
    """The share of a step's time that goes into waiting for the loader, both as logged."""
    wait, time = curve_of(run, "data_wait"), curve_of(run, "step_time")
    if wait is None or time is None or len(wait) < FEWEST:
        return None
    share = float(np.median(wait.value) / max(float(np.median(time.value)), 1e-300))
    if share < WAITS:
        return None
    return Finding(
        kind="loader_bound",
        severity="warning",
        says=f"a step waits {np.median(wait.value):.3g} s for data out of {np.median(time.value):.3g} s, {share:.0%}",
        onset_step=int(wait.step[0]),
        metric="data_wait",
        numbers={"share": share},
    )


def _stall(run: Run) -> Finding | None:
    """Hours in which nothing was logged, by the clock in the log."""
    rows = run.table[run.table["wall_time"].notna().to_numpy()]
    if len(rows) < FEWEST:
        return None
    time, step = rows["wall_time"].to_numpy("float64"), rows["step"].to_numpy("int64")
    seconds, steps = np.diff(time), np.maximum(np.diff(step), 1)
    per_step = float(np.median(seconds / steps))
    idle = seconds - steps * per_step
    at = np.flatnonzero((idle > IDLE_SECONDS) & (idle > 20 * per_step) & (seconds > 3 * steps * per_step))
    if not len(at):
        return None
    longest, total = int(at[np.argmax(idle[at])]), float(idle[at].sum())
    share = total / max(float(time[-1] - time[0]), 1e-300)
    return Finding(
        kind="stall",
        severity="warning" if share > COSTLY else "info",
        says=f"nothing logged for {idle[longest] / 3600:.1f} h beyond the usual between steps {step[longest]:,} and "
        f"{step[longest + 1]:,}; {len(at)} such stretches, {total / 3600:.1f} h, {share:.0%} of the time logged",
        onset_step=int(step[longest]),
        peak_step=int(step[longest]),
        end_step=int(step[longest + 1]),
        metric="wall_time",
        numbers={
            "idle_seconds": total,
            "stretches": len(at),
            "steps": [int(s) for s in step[at][:20]],
            "share": share,
        },
    )
