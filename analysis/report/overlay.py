"""What the overlay draws: every measure of every run, with what turns its steps and tokens into each x axis."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.compare import of_its_lineage
from analysis.curves import AXES, axis_values, debiased_average, has_metric, integrated_lr, points
from analysis.ledger import COMPARABLE, NOT_COMPARABLE, SHAPE_ONLY
from analysis.measures import MEASURES, consequence, measured
from analysis.report.marks import found_marks, public_events
from analysis.shape import Reference, reference_level
from analysis.thinning import break_at_holes, keep_extremes
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

MOST_POINTS = 2_000
"""Points drawn per curve; a longer log keeps the lowest and highest point of every stretch."""

HALF_LIFE = 0.05
"""Half-life of the average drawn for the eye, as a share of the steps done at that point."""

LOG = ("relative", "loss", "bpb", "reducible", "grad_norm")
"""Measures on a logarithmic y axis."""

SMOOTHED = ("relative", "loss", "reducible", "grad_norm")
"""Measures that get a line for the eye; the others are smooth or sparse as logged."""

NOTES = {
    "relative": "Each curve is divided by its own mean over the reference window, the latest stretch that all runs "
    "have. So all curves pass through 1 there, and what is compared is how the loss gets there: {shape}.",
    "loss": "Other text and another tokenizer give another loss for an equally good model.",
    "bpb": "Bits per byte take the tokenizer out, but each run is read on its own evaluation text: {texts}.",
    "reducible": "The irreducible term, which no training removes, is subtracted. A power law is a straight line here, "
    "on two logarithmic axes.",
    "grad_norm": "The level depends on size, batch and parametrisation. Worth comparing: a first peak in the warm-up, "
    "the minimum after it, and whether the late level rises.",
    "lr": "Both divided by their own peak. On the fraction axis equal schedules coincide.",
}


def overlay_data(
    own: list[Run],
    public: Run,
    comparison: dict[str, Any],
    diagnosis: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Everything the overlay figure needs, JSON-ready: `axes, measures, runs, events, reference`; a run's `found` are
    the findings of `diagnosis` in its log.

    A curve has `done` (steps done), `tokens`, `integrated_lr`, `value` and `line` (smoothed for the eye where
    `smoothed`), and `breaks` before which the line stops because nothing was logged. x = base * factor with a run's
    `factors[axis]`; a factor of None means that the run cannot be drawn on that axis, and `missing` says why.
    """
    public, own = of_its_lineage(public), [of_its_lineage(run) for run in own]
    runs = [public, *own]
    shared = [
        m
        for m in public.metrics
        if m not in MEASURES and m != comparison["metric"] and all(has_metric(run, m) for run in runs)
    ]
    names = [*MEASURES, *shared]
    window = comparison["reference_window"]
    reference = Reference(*window) if window else None
    drawn = [
        _run_data(run, public if run is not public else own[0], names, comparison, reference)
        | {"public": run is public, "found": found_marks(run, diagnosis)}
        for run in runs
    ]
    return {
        "axes": {key: {"label": axis.label, "base": axis.base} for key, axis in AXES.items()},
        "measures": {
            name: {
                "label": MEASURES[name].label if name in MEASURES else name,
                "note": _note(name, runs, comparison, drawn),
                "log": name in LOG,
            }
            for name in names
        },
        "runs": drawn,
        "events": public_events(public),
        "reference": window,
    }


def _run_data(
    run: Run, other: Run, names: list[str], comparison: dict[str, Any], reference: Reference | None
) -> dict[str, Any]:
    rows = points(run, comparison["metric"])
    factors = {
        key: axis.factor(run.facts) for key, axis in AXES.items() if axis_values(run, rows, key) is not None
    }
    curves, absent = {}, {}
    for name in names:
        try:
            curves[name] = _curve(run, other, name, comparison, reference)
        except InputError as error:
            absent[name] = str(error)
    return {
        "name": run.name,
        "title": run.facts.title or run.name,
        "factors": {key: factors.get(key) for key in AXES},
        "missing": {
            key: f"{run.name} does not state {AXES[key].needs}" for key in AXES if key not in factors
        },
        "curves": curves,
        "absent": absent,
    }


def _curve(
    run: Run, other: Run, name: str, comparison: dict[str, Any], reference: Reference | None
) -> dict[str, Any]:
    """One measure of a run.

    Raises:
        InputError: it cannot be had from this run, in words.
    """
    loss = comparison["metric"]
    if (
        name == "relative"
    ):  # set to one in the same window on every x axis, which is one of the schedule's fraction
        level = reference_level(run, loss, "fraction", reference) if reference else None
        if level is None:
            raise InputError(f"{run.name} has no loss in a reference window that all runs share")
        metric, value, note = loss, points(run, loss)["value"].to_numpy("float64") / level, ""
    else:
        found = measured(run, other, "step", name, loss, None, comparison.get("irreducible"))
        metric, value, note = found.metric, found.y, found.note
    rows = points(run, metric)
    known = np.isfinite(value)
    if not known.any():
        raise InputError(f"{run.name} has no value of it above zero")
    rows, value = rows[known].reset_index(drop=True), value[known]
    done = rows["done"].to_numpy("float64")
    smooth = name in SMOOTHED and len(value) > 20
    line = debiased_average(np.log(np.maximum(done, 1.0)), value, np.log1p(HALF_LIFE)) if smooth else value
    kept = _kept(value)
    drawn = pd.DataFrame({"done": done, "tokens": rows["tokens"], "value": value, "line": line}).iloc[kept]
    summed = integrated_lr(run, rows["step"].to_numpy("float64")[kept])
    return {
        "metric": metric,
        "note": note,
        "logged": len(rows),
        "smoothed": smooth,
        "breaks": [int(i) for i in break_at_holes(drawn["done"].to_numpy("float64"))],
        "done": drawn["done"].astype(int).tolist(),
        "tokens": [None if np.isnan(t) else int(t) for t in drawn["tokens"]],
        "integrated_lr": None if summed is None else _short(pd.Series(summed)),
        "value": _short(drawn["value"]),
        "line": _short(drawn["line"]),
    }


def _kept(value: Numbers) -> NDArray[np.intp]:
    """Indices of the points that are drawn: half of them spread over the log evenly, half over its decades, so that
    neither a linear nor a logarithmic axis has bare stretches; the extremes of every stretch are among them."""
    if len(value) <= MOST_POINTS:
        return np.arange(len(value))
    edges = [0, *(10**k for k in range(1, 12) if 10**k < len(value)), len(value)]
    decades = [
        lo + keep_extremes(value[lo:hi], MOST_POINTS // (2 * len(edges))) for lo, hi in pairwise(edges)
    ]
    return np.unique(np.concatenate([keep_extremes(value, MOST_POINTS // 2), *decades]))


def _short(values: "pd.Series[float]") -> list[float]:
    """Six significant digits: more than a screen shows, and half the bytes."""
    return [float(f"{value:.6g}") for value in values]


def _note(name: str, runs: list[Run], comparison: dict[str, Any], drawn: list[dict[str, Any]]) -> str:
    """What the measure is, what was done to each curve, and what the ledger allows."""
    text = NOTES.get(name, f"{name}, as both logged it.").format(
        shape=_distances(comparison),
        texts="; ".join(sorted({run.facts.evaluation_set or f"not stated for {run.name}" for run in runs})),
    )
    notes = [
        f"{run['name']}: {run['curves'][name]['note']}"
        for run in drawn
        if name in run["curves"] and run["curves"][name]["note"]
    ]
    metric = next((run["curves"][name]["metric"] for run in drawn if name in run["curves"]), name)
    found = [consequence(name, metric, pair["ledger"]) for pair in comparison["pairs"]]
    worth, deciding = max(found, key=lambda one: (COMPARABLE, SHAPE_ONLY, NOT_COMPARABLE).index(one[0]))
    aspects = ", ".join(row["aspect"] for row in deciding)
    allowed = f"By the ledger: {worth}" + (
        f", since these differ or are not known to agree: {aspects}." if aspects else "."
    )
    return " ".join([text, *(f"{note}." for note in notes), allowed])


def _distances(comparison: dict[str, Any]) -> str:
    distances = [
        f"{pair['own'].rsplit('/', 1)[-1]} {pair['shape_distance']:.3f} "
        f"({pair['interval'][0]:.3f} to {pair['interval'][1]:.3f})"
        for pair in comparison["pairs"]
        if pair["shape_distance"] is not None
    ]
    if not distances:
        return "no distance can be given, see the ledger"
    return f"root-mean-square distance in log loss {', '.join(distances)}"
