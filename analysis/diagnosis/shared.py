"""Findings that stand in every run with the same data order: this batch, not this run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.diagnosis.finding import Finding
from analysis.diagnosis.trend import Curve

SAME_ORDER = 0.71
"""Correlation of two runs' residuals, step by step, from which they must have read the same batches: more than half
of their variance is common, for what makes a batch hard makes it hard for both. The public runs of one order have
.99 (build-nanogpt), a run of the same study whose batches are not the same .57."""

FEWEST = 200
"""Common steps below which a correlation is not sure: its standard error is .07 there."""

STANDS_OUT = 4.0
"""Standard deviations in the other runs at the step that one run points at: a single place, so fewer will do."""

SAME_RUN = 1e-3
"""Median relative difference below which two logs are of one run: no evidence of each other."""


@dataclass(frozen=True)
class Diagnosed:
    """A run's name, its loss and what was found in it."""

    run: str
    loss: Curve
    findings: tuple[Finding, ...]


def shared_batches(runs: Sequence[Diagnosed]) -> list[dict[str, Any]]:
    """The steps at which one run has a spike and every other run with its data order stands out, too.

    Returns:
        `{step, runs, standard_deviations, of}`: the runs that stand out there, how far each, and how many different
        runs of this data order logged the step; sorted by step.
    """
    shared: dict[int, dict[str, Any]] = {}
    for i, one in enumerate(runs):
        others = [other for j, other in enumerate(runs) if j != i and same_order(one.loss, other.loss)]
        others = _different(one, others)
        for finding in one.findings:
            if finding.kind not in ("spike", "odd_batch") or finding.peak_step is None or not others:
                continue
            seen = {
                other.run: z for other in others if (z := _z_at(other.loss, finding.peak_step)) is not None
            }
            out = {name: z for name, z in seen.items() if z >= STANDS_OUT}
            if not seen or len(out) < len(seen):
                continue
            entry = shared.setdefault(
                finding.peak_step,
                {"step": finding.peak_step, "runs": [], "standard_deviations": {}, "of": len(seen) + 1},
            )
            for name, z in {one.run: float(finding.numbers["z"]), **out}.items():
                entry["standard_deviations"].setdefault(name, round(z, 2))
            entry["runs"] = sorted(entry["standard_deviations"])
    return [shared[step] for step in sorted(shared)]


def same_order(one: Curve, other: Curve) -> bool:
    """Whether the residuals of two runs move together at the steps that both logged."""
    _, left, right = np.intersect1d(one.step, other.step, assume_unique=True, return_indices=True)
    if len(left) < FEWEST:
        return False
    a, b = np.clip(one.z[left], -4, 4), np.clip(other.z[right], -4, 4)
    if a.std() == 0 or b.std() == 0:
        return False
    return bool(np.corrcoef(a, b)[0, 1] >= SAME_ORDER)


def _same_run(one: Curve, other: Curve) -> bool:
    _, left, right = np.intersect1d(one.step, other.step, assume_unique=True, return_indices=True)
    difference = np.abs(one.value[left] - other.value[right])
    return bool(np.median(difference) <= SAME_RUN * np.median(np.abs(one.value[left])))


def _different(one: Diagnosed, others: list[Diagnosed]) -> list[Diagnosed]:
    """`others` without further logs of `one`, and of each of them one log."""
    kept: list[Diagnosed] = []
    for other in others:
        if not any(_same_run(other.loss, known.loss) for known in (one, *kept)):
            kept.append(other)
    return kept


def _z_at(curve: Curve, step: int) -> float | None:
    i = int(np.searchsorted(curve.step, step))
    return float(curve.z[i]) if i < len(curve) and curve.step[i] == step else None
