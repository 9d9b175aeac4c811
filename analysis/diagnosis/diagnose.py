"""All findings about a run and the verdict; the one entry to this package."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.diagnosis.advice import advised
from analysis.diagnosis.cells import FEWEST as FEWEST_CELLS
from analysis.diagnosis.cells import diverged_cells, usable_losses
from analysis.diagnosis.coverage import coverage_findings
from analysis.diagnosis.divergence import divergence, not_learning, uniform_guess
from analysis.diagnosis.finding import SEVERITIES, Finding, worst
from analysis.diagnosis.grad_norm import grad_norm_findings
from analysis.diagnosis.levels import fork_steps, level_steps, merged
from analysis.diagnosis.lr_steps import lr_steps
from analysis.diagnosis.memory import is_memory, memory_growth
from analysis.diagnosis.non_finite import non_finite
from analysis.diagnosis.overfitting import overfitting
from analysis.diagnosis.phases import phases
from analysis.diagnosis.plateaus import oscillation, plateau
from analysis.diagnosis.reference import against_reference
from analysis.diagnosis.routing import routing_findings
from analysis.diagnosis.shared import Diagnosed, shared_batches
from analysis.diagnosis.spikes import FEWEST, find_spikes, six_sigma_score, spike_findings
from analysis.diagnosis.throughput import throughput_findings
from analysis.diagnosis.trend import Curve, curve_of, flattened
from experiments.configuration import InputError
from logs.catalogue import load_catalogue
from logs.schema import Run

JUDGED = 5
"""Points of the loss below which nothing is said about its course."""

DIVERGED = ("divergence", "diverged_cell")

OF_THE_LOG = ("duplicated_steps", "missing_stretch", "missing_values", "ends_early", "too_little")
"""Findings about the log, which no event of the run explains."""

EVENT_STEPS = 10
"""Steps within which a published event of the run counts as what was found."""


def diagnose(run: Run) -> dict[str, Any]:
    """What happened to one run. See `diagnose_all` for runs to be held against each other.

    Returns:
        `{run, verdict, says, findings: [{kind, title, onset_step, peak_step, end_step, severity, evidence, causes,
        try_first, sources}], phases: [{name, first_step, last_step}], loss, six_sigma, reference}`: `verdict` is
        healthy, warning or diverged, `says` the same in a sentence; `loss` names the metric that was judged, its
        points and the axis of the windows. Findings stand by severity, then by size, then by step.

    Raises:
        InputError: the run has no rows.
    """
    return diagnose_all([run])["runs"][0]


def diagnose_all(runs: Sequence[Run]) -> dict[str, Any]:
    """What happened to each of the runs, and which spikes are those of a batch that several of them read.

    Returns:
        `{runs: [documents as of diagnose], shared_batches: [{step, runs, standard_deviations, of}]}`.

    Raises:
        InputError: a run has no rows.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # of what a broken run logs
        return _diagnosed([_read(run) for run in runs])


def _diagnosed(read: list["_Log"]) -> dict[str, Any]:
    findings = [_findings(log) for log in read]
    known = [
        Diagnosed(log.run.name, log.loss, tuple(found))
        for log, found in zip(read, findings, strict=True)
        if log.loss is not None
    ]
    shared = shared_batches(known) if len(known) > 1 else []
    documents = [
        _document(log, _with_shared(log.run.name, found, shared))
        for log, found in zip(read, findings, strict=True)
    ]
    return {"runs": [finite(document) for document in documents], "shared_batches": finite(shared)}


def finite(value: Any) -> Any:
    """A document with None for numbers that JSON lacks: a log may hold values whose distance overflows."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class _Log:
    """A run, the same flattened to its lineage, and the curves that several findings need."""

    run: Run
    lineage: Run
    loss: Curve | None
    lr: Curve | None
    grad_norm: Curve | None

    @property
    def judged(self) -> bool:
        """Whether there is enough of a loss to say something about its course."""
        return self.loss is not None and len(self.loss) >= JUDGED


def _read(run: Run) -> _Log:
    lineage = flattened(run)
    if not len(lineage.table):
        raise InputError(f"run {run.name} has no rows; there is nothing to diagnose")
    lr, norm = curve_of(lineage, "lr"), curve_of(lineage, "grad_norm")
    return _Log(run, lineage, loss_of(lineage), lr, norm)


def diagnose_cells(table: pd.DataFrame, name: str) -> dict[str, Any]:
    """A table of final losses, one row a training run: the cells that diverged, in a document as of `diagnose`.

    Raises:
        InputError: no column holds losses.
    """
    found, losses = diverged_cells(table, name), len(usable_losses(table, name))
    verdict = "diverged" if found else "healthy"
    says = f"{len(found)} of" if found else "none of"
    says += f" {len(table)} cells {'diverged' if found else 'stands out'}"
    if losses < len(table):
        says += f"; {losses} have a loss that is a positive number"
    if losses < FEWEST_CELLS and not found:
        verdict, says = (
            "warning",
            f"{losses} of {len(table)} cells have a loss; {FEWEST_CELLS} are needed to judge",
        )
        found = [Finding(kind="too_little", severity="warning", says=says, numbers={"cells": losses})]
    return {
        "run": name,
        "verdict": verdict,
        "says": f"no column counts steps, so this was read as final losses, one row a training run: {says}",
        "findings": [advised(finding) for finding in found],
        "phases": [],
        "loss": None,
        "six_sigma": None,
        "reference": None,
    }


def loss_of(run: Run) -> Curve | None:
    """The loss to judge a run by: of training, or if the log has hardly any, the evaluation logged most often."""
    for name in ("train/loss", "train/loss_bpb"):
        curve = curve_of(run, name)
        if curve is not None and len(curve) >= JUDGED:
            return curve
    losses = [m for m in run.metrics if "loss" in m.lower().rsplit("/", 1)[-1] or "crossentropy" in m.lower()]
    measured = [m for m in losses if not m.startswith(("ladder_prediction", "router/"))]
    curves = [curve for m in measured if (curve := curve_of(run, m)) is not None]
    return max(curves, key=len, default=None)  # the first of those that have as many


def _findings(log: _Log) -> list[Finding]:
    run, lineage, loss = log.run, log.lineage, log.loss
    found = non_finite(lineage, loss.metric if loss else "train/loss")
    found += _of_the_loss(log, loss) if loss is not None else []
    if log.grad_norm is not None:
        found += grad_norm_findings(log.grad_norm)
    found += [
        f for m in lineage.metrics if is_memory(m) and (c := curve_of(lineage, m)) and (f := memory_growth(c))
    ]
    found += throughput_findings(run, lineage) + routing_findings(run, lineage) + coverage_findings(run, loss)
    if not log.judged:
        found.append(_too_little(lineage, loss))
    return [_explained(run, finding) for finding in found]


def _of_the_loss(log: _Log, loss: Curve) -> list[Finding]:
    """Findings in the course of the loss; what a divergence drags along is left out."""
    lr = log.lr
    if log.judged and np.ptp(loss.value) == 0:
        return [_constant(loss)]
    broken = divergence(loss) or uniform_guess(log.run, loss)
    found = spike_findings(loss) + (lr_steps(lr) if lr is not None else [])
    handovers = [segment.first_step for segment in log.run.segments[1:]]
    levels = level_steps(loss, find_spikes(loss), lr, handovers)
    found += merged(levels, fork_steps(log.run, loss.metric), loss.stride)
    if broken is not None:
        before = [f for f in found if f.onset_step is None or f.onset_step < (broken.onset_step or 0)]
        return [broken, *before]
    stuck = not_learning(loss, log.run)
    found += [f for f in (stuck, oscillation(loss), None if stuck else plateau(loss, lr)) if f is not None]
    for metric in log.lineage.metrics:
        if metric.startswith("eval/") and metric.endswith(("/loss", "/loss_bpb")) and metric != loss.metric:
            evaluation = curve_of(log.lineage, metric)
            risen = overfitting(loss, evaluation) if evaluation is not None else None
            found += [risen] if risen is not None else []
    return found


def _too_little(run: Run, loss: Curve | None) -> Finding:
    logged = ", ".join(run.metrics[:8]) or "nothing"
    says = f"no loss in this log; it has {logged}" if loss is None else ""
    says = (
        says
        or f"{len(loss or ())} points of {loss.metric if loss else ''}; at least {JUDGED} are needed to say anything"
    )
    return Finding(
        kind="too_little", severity="warning", says=says, metric=loss.metric if loss else None,
        onset_step=int(loss.step[0]) if loss is not None else None, numbers={"points": len(loss) if loss else 0},
    )  # fmt: skip


def _constant(loss: Curve) -> Finding:
    return Finding(
        kind="constant", severity="severe", metric=loss.metric, onset_step=int(loss.step[0]),
        says=f"{loss.metric} is {loss.value[0]:.6g} at all of its {len(loss)} logged steps",
        numbers={"value": float(loss.value[0]), "points": len(loss)},
    )  # fmt: skip


def _explained(run: Run, finding: Finding) -> Finding:
    """The finding with what the catalogue's entry of this run tells of the step; a change of data, model or systems
    that was meant to be is no warning."""
    entry = load_catalogue().get(run.name)
    if entry is None or finding.onset_step is None or finding.kind in OF_THE_LOG:
        return finding
    events = [e for e in entry.events if abs(e.step - finding.onset_step) <= EVENT_STEPS and not e.planned]
    if not events:
        return finding
    meant = finding.kind == "level_step" and any(
        e.kind in ("data", "model", "systems", "schedule") for e in events
    )
    published = [{"step": e.step, "kind": e.kind, "what": e.what, "source": e.source} for e in events]
    return replace(
        finding,
        severity="info" if meant else finding.severity,
        says=f"{finding.says}. Published: {events[0].what}",
        numbers={**finding.numbers, "published": published},
    )


def _with_shared(name: str, found: list[Finding], shared: list[dict[str, Any]]) -> list[Finding]:
    """Findings of a run in which spikes of shared batches are called so."""
    by_step = {entry["step"]: entry for entry in shared if name in entry["runs"]}
    result = []
    for finding in found:
        entry = by_step.get(finding.peak_step) if finding.kind in ("spike", "odd_batch") else None
        if entry is not None:
            others = [run for run in entry["runs"] if run != name]
            says = f"{finding.says}. The same step stands out in {', '.join(others)}, which read the same batches: "
            says += "this batch, not this run"
            numbers = {**finding.numbers, "shared_with": others}
            finding = replace(finding, kind="shared_batch", severity="info", says=says, numbers=numbers)
        result.append(finding)
    return result


def _document(log: _Log, found: list[Finding]) -> dict[str, Any]:
    loss = log.loss if log.judged else None
    size = {id(f): -abs(f.numbers.get("share_undone") or 0.0) for f in found}
    found = sorted(
        found,
        key=lambda f: (f.kind not in DIVERGED, SEVERITIES.index(f.severity), size[id(f)], f.onset_step or 0),
    )
    verdict = "diverged" if any(f.kind in DIVERGED for f in found) else "healthy"
    if verdict == "healthy" and worst(found) in ("warning", "severe"):
        verdict = "warning"
    reference = against_reference(loss, log.grad_norm, log.run.name) if loss is not None else None
    return {
        "run": log.run.name,
        "verdict": verdict,
        "says": _says(verdict, found, reference),
        "findings": [advised(finding) for finding in found],
        "phases": phases(loss, log.lr) if loss is not None else [],
        "loss": _judged_by(log.loss) if log.loss is not None else None,
        "six_sigma": six_sigma_score(loss) if loss is not None else None,
        "reference": reference,
    }


def _judged_by(loss: Curve) -> dict[str, Any]:
    return {
        "metric": loss.metric,
        "points": len(loss),
        "every_kth_step": loss.stride,
        "window": {"width": loss.window, "of": loss.axis},
        "spikes_looked_for": len(loss) >= FEWEST,
    }


def _says(verdict: str, found: list[Finding], reference: dict[str, Any] | None) -> str:
    """The verdict in a sentence."""
    if verdict != "healthy":
        return advised(found[0])["title"] + ": " + found[0].says
    notes = sum(1 for f in found if f.severity == "info")
    some = f"; {notes} note" + "s" * (notes > 1) if notes else ""
    says = "nothing that needs attention" + some
    if reference and reference["measures"]:
        measures, public = reference["measures"], len(reference["runs"])
        inside = sum(1 for m in measures if m["inside"])
        says += f"; {inside} of {len(measures)} measures lie in the band of {public} healthy public runs"
    return says
