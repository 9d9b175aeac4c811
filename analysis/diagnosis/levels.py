"""Steps of the loss's level without a spike: another data mixture, another loss, other code."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.spikes import Spike
from analysis.diagnosis.trend import MAD_TO_SIGMA, Curve, centred_median
from logs.schema import Run, is_logged

Numbers = NDArray[np.float64]

SIDES = (13, 65)
"""Points on either side of a step: at least so many that their median scatters by a third of one point's, at most
so many that a dense log still shows where the step is."""

STANDS_OUT, AT_HANDOVER = 6.0, 4.0
"""Standard deviations, of white noise and of how the level wanders in the neighbourhood, each; where a segment
begins there is a single place to look at, and less is needed to believe it."""

MATERIAL = 0.005
"""Share of the level that a step must have."""

ABRUPT = 0.6
"""Share of the step that must lie between the quarters of the sides next to it: a ramp has half or less there."""

NEIGHBOURHOOD = 8
"""Sides before and after within which the usual wander of the level is taken."""

FEWEST_PAIRS = 3


def level_steps(
    curve: Curve, spikes: list[Spike], lr: Curve | None, handovers: Sequence[int] = ()
) -> list[Finding]:
    """Where the median of the points after lies apart from that of the points before, at one place, against both
    the scatter of the points and the usual wander of the level; holes in the log hide what happened in them.
    `handovers`: the first steps of the segments."""
    side = int(np.clip(len(curve) // 32, *SIDES)) | 1  # odd, so that a median is one of the points
    if len(curve) < 8 * side:
        return []
    value = curve.value.copy()
    for spike in spikes:
        value[spike.onset : spike.end] = curve.trend[spike.onset : spike.end]
    change = _change(value, side)
    white = 1.25 * curve.noise * np.sqrt(2 / side)
    known = slice(side, len(value) - side + 1)
    centre, wander = np.zeros(len(value)), np.full(len(value), np.inf)
    centre[known] = centred_median(change[known], NEIGHBOURHOOD * side)
    wander[known] = MAD_TO_SIGMA * centred_median(np.abs(change - centre)[known], NEIGHBOURHOOD * side)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.abs(change - centre) / np.maximum(wander, white)
        near = _change(value, max(3, side // 4) | 1)
        needed = np.full(len(value), STANDS_OUT)
        needed[np.searchsorted(curve.step, [s for s in handovers if s <= curve.step[-1]])] = AT_HANDOVER
        found = (z >= needed) & (np.abs(change) >= MATERIAL * np.abs(curve.trend))
        found &= (near * np.sign(change) >= ABRUPT * np.abs(change)) & ~_after_a_hole(curve.x, side)
    return [
        _finding(curve, place, float(change[i]), float(z[i]), side, lr)
        for i, place in _places(found, z, value, side)
    ]


def _change(value: Numbers, side: int) -> Numbers:
    """Median of `side` points from each on, less that of the `side` points before it; NaN near the ends. `side` is
    odd."""
    half = side // 2
    median = centred_median(value, half)
    change = np.full(len(value), np.nan)
    change[side : len(value) - side + 1] = (
        median[side + half : len(value) - half] - median[half : len(value) - side - half]
    )
    return change


def _after_a_hole(x: Numbers, side: int) -> NDArray[np.bool_]:
    """Points whose distance to the one before is a tenth or more of what both sides span."""
    at = np.arange(len(x))
    span = x[np.minimum(at + side - 1, len(x) - 1)] - x[np.maximum(at - side, 0)]
    return np.diff(x, prepend=x[0]) > 0.1 * span


def _places(found: NDArray[np.bool_], z: Numbers, value: Numbers, side: int) -> list[tuple[int, int]]:
    """The most significant point of each group of `found`, and where its step lies; groups lie more than two sides
    apart."""
    at = np.flatnonzero(found)
    if not len(at):
        return []
    groups = np.split(at, np.flatnonzero(np.diff(at) > 2 * side) + 1)
    best = [int(group[np.argmax(z[group])]) for group in groups]
    return [(i, _split(value, i, side)) for i in best]


def _split(value: Numbers, i: int, side: int) -> int:
    """Where within half a side around `i` two constant levels meet at the least sum of absolute distances."""
    near = value[i - side : i + side]
    before = np.abs(near - np.median(value[i - side : i - side // 2]))
    after = np.abs(near - np.median(value[i + side // 2 : i + side]))
    cost = np.concatenate(
        [[0.0], np.cumsum(before - after)]
    )  # of a split ahead of each point, but for a constant
    middle = slice(side - side // 2, side + side // 2 + 1)
    return i - side + middle.start + int(np.argmin(cost[middle]))


def _finding(curve: Curve, i: int, change: float, z: float, side: int, lr: Curve | None) -> Finding:
    with_lr = ""
    if lr is not None:
        before, after = np.interp(
            [curve.step[max(0, i - side)], curve.step[min(len(curve) - 1, i + side)]], lr.step, lr.value
        )
        if after < 0.7 * before:
            with_lr = f"; the learning rate falls from {before:.3g} to {after:.3g} there"
    return Finding(
        kind="level_step",
        severity="warning" if change > 0 else "info",
        says=f"{curve.metric} {'up' if change > 0 else 'down'} by {abs(change):.4f} at step {curve.step[i]:,} and it "
        f"stays there ({z:.0f} standard deviations){with_lr}",
        onset_step=int(curve.step[i]),
        peak_step=int(curve.step[i]),
        metric=curve.metric,
        numbers={"change": change, "z": z, "points_per_side": side},
        rows=rows_around(curve.step, curve.value, i, i),
    )


def fork_steps(run: Run, metric: str) -> list[Finding]:
    """Level steps at forks, seen where parent and child logged the same steps: same batches, so that their
    differences are free of the noise between batches.

    Counts where three pairs or more agree in sign and their mean is three standard errors from zero, and is at
    least a thousandth of the level: kernels round differently, which is no step.
    """
    if metric not in run.metrics:
        return []
    logged = run.table[is_logged(run.table[metric])]
    by_segment = {str(name): rows for name, rows in logged.groupby("segment", sort=False)}
    findings = []
    for child in run.segments:
        if child.parent is None or child.id not in by_segment or child.parent not in by_segment:
            continue
        pairs = _pairs(by_segment[child.parent], by_segment[child.id], metric, child.first_step)
        difference = (pairs["child"] - pairs["parent"]).to_numpy()
        if len(difference) < FEWEST_PAIRS or not (np.all(difference > 0) or np.all(difference < 0)):
            continue
        mean, error = float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))
        if abs(mean) < max(3 * error, 1e-3 * float(pairs["parent"].abs().mean())):
            continue
        shown = sorted(difference.tolist(), key=abs)
        findings.append(
            Finding(
                kind="level_step",
                severity="warning" if mean > MATERIAL * float(pairs["parent"].mean()) else "info",
                says=f"{metric} {mean:+.4f} at step {child.first_step:,}, where {child.id} begins: {shown[0]:+.4f} to "
                f"{shown[-1]:+.4f} on {len(difference)} steps that its parent logged, too",
                onset_step=child.first_step,
                peak_step=child.first_step,
                metric=metric,
                numbers={
                    "change": mean,
                    "standard_error": error,
                    "lowest": float(difference.min()),
                    "highest": float(difference.max()),
                    "paired_steps": [int(s) for s in pairs["step"][:20]],
                },
                rows=tuple(
                    (int(s), float(f"{v:.6g}"))
                    for s, v in zip(pairs["step"][:12], pairs["child"][:12], strict=True)
                ),
            )
        )
    return findings


def _pairs(parent: pd.DataFrame, child: pd.DataFrame, metric: str, first: int) -> pd.DataFrame:
    """Columns `step, parent, child`: the finite values of both at the steps from the fork on."""
    sides = []
    for name, rows in (("parent", parent), ("child", child)):
        rows = rows[rows["step"] >= first]
        values = rows[metric].array._pa_array.to_numpy()
        side = pd.DataFrame({"step": rows["step"].to_numpy("int64"), name: values})
        sides.append(side[np.isfinite(side[name])].drop_duplicates("step", keep="last"))
    return sides[0].merge(sides[1], on="step")


def merged(from_series: list[Finding], from_forks: list[Finding], stride: int) -> list[Finding]:
    """Both kinds of evidence as one list: a step seen in the series next to a fork is the fork's."""
    kept = list(from_forks)
    for finding in from_series:
        at = finding.onset_step or 0
        near = [f for f in from_forks if abs((f.onset_step or 0) - at) <= 10 * stride]
        if not near:
            kept.append(finding)
    return sorted(kept, key=lambda f: f.onset_step or 0)
