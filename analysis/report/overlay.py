"""What the overlay draws: every measure of every run, with what turns its steps and tokens into each x
axis."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.curves import AXES, axis_values, debiased_average, has_metric, integrated_lr, points
from analysis.ledger import SHAPE_ONLY
from analysis.shape import Reference, reference_level
from analysis.thinning import break_at_holes, keep_extremes
from logs.catalogue import load_catalogue
from logs.schema import Run

MOST_POINTS = 2_000
"""Points drawn per curve; a longer log keeps the lowest and highest point of every stretch."""

HALF_LIFE = 0.05
"""Half-life of the average drawn for the eye, as a share of the steps done at that point."""


@dataclass(frozen=True)
class Measure:
    """A y axis: its label, the metrics it may be read from (the first that a run logs), and a note."""

    label: str
    metrics: tuple[str, ...]
    note: str
    log: bool = False
    smooth: bool = True


MEASURES: dict[str, Measure] = {
    "relative": Measure(
        "loss / its value at the reference",
        (),
        "Each curve is divided by its own mean over the reference window, the latest stretch that all runs "
        "have. So all curves pass through 1 there, and what is compared is how the loss gets there: "
        "{shape}.",
        log=True,
    ),
    "loss": Measure(
        "loss, nats per token",
        (),
        "Levels are {nats}: other text and another tokenizer give another loss for an equally good model. "
        "Read the form of the curves here, not which is lower.",
        log=True,
    ),
    "bpb": Measure(
        "evaluation loss, bits per byte",
        ("eval/mean/loss_bpb", "eval/paloma_macro/loss_bpb"),
        "Bits per byte take the tokenizer out, but each run is read on its own evaluation text ({texts}), "
        "so the levels are {bpb}.",
        log=True,
        smooth=False,
    ),
    "grad_norm": Measure(
        "gradient norm",
        ("grad_norm",),
        "The level depends on size, batch and parametrisation: shape only. Worth comparing: a first peak "
        "in the warm-up, the minimum after it, and whether the late level rises.",
        log=True,
    ),
    "lr": Measure(
        "learning rate / peak",
        ("lr",),
        "Both divided by their own peak. On the fraction axis equal schedules coincide.",
        smooth=False,
    ),
}


def overlay_data(own: list[Run], public: Run, comparison: dict[str, Any]) -> dict[str, Any]:
    """Everything the overlay figure needs, JSON-ready: `axes, measures, runs, events, reference`.

    A curve has `done` (steps done), `tokens`, `value` and, where it is smoothed for the eye, `smooth`,
    with None where the line must break because nothing was logged. x = base * factor with a run's
    `factors[axis]`; a factor of None means that the run cannot be drawn on that axis, and `missing` says why.
    """
    window = comparison["reference_window"]
    reference = Reference(*window) if window else None
    notes = _notes(own, public, comparison)
    return {
        "axes": {key: {"label": axis.label, "base": axis.base} for key, axis in AXES.items()},
        "measures": {
            key: {"label": measure.label, "note": measure.note.format_map(notes), "log": measure.log}
            for key, measure in MEASURES.items()
        },
        "runs": [
            _run_data(run, comparison["metric"], reference, public=run is public) for run in [public, *own]
        ],
        "events": public_events(public),
        "reference": window,
    }


def _run_data(run: Run, loss: str, reference: Reference | None, public: bool) -> dict[str, Any]:
    rows = points(run, loss)
    factors = {
        key: axis.factor(run.facts) for key, axis in AXES.items() if axis_values(run, rows, key) is not None
    }
    return {
        "name": run.name,
        "title": run.facts.title or run.name,
        "public": public,
        "factors": {key: factors.get(key) for key in AXES},
        "missing": {
            key: f"{run.name} does not state {AXES[key].needs}" for key in AXES if key not in factors
        },
        "curves": {
            key: curve
            for key, measure in MEASURES.items()
            if (curve := _curve(run, key, measure, loss, reference)) is not None
        },
    }


def _curve(
    run: Run, key: str, measure: Measure, loss: str, reference: Reference | None
) -> dict[str, Any] | None:
    metric = next((m for m in measure.metrics or (loss,) if has_metric(run, m)), None)
    if metric is None:
        return None
    rows, scale = points(run, metric), 1.0
    if key == "relative":
        level = reference_level(run, metric, "fraction", reference) if reference else None
        if level is None:
            return None
        scale = 1 / level
    if key == "lr":
        top = float(rows["value"].max())
        if top <= 0:
            return None
        scale = 1 / top
    value = rows["value"].to_numpy("float64") * scale
    done = rows["done"].to_numpy("float64")
    smooth = measure.smooth and len(value) > 20
    line = debiased_average(np.log(done), value, np.log1p(HALF_LIFE)) if smooth else value
    kept = keep_extremes(value, MOST_POINTS)
    drawn = pd.DataFrame({"done": done, "tokens": rows["tokens"], "value": value, "line": line}).iloc[kept]
    summed = integrated_lr(run, rows["step"].to_numpy("float64")[kept])
    return {
        "metric": metric,
        "logged": len(rows),
        "smoothed": smooth,
        "breaks": [int(i) for i in break_at_holes(drawn["done"].to_numpy("float64"))],
        "done": drawn["done"].astype(int).tolist(),
        "tokens": [None if np.isnan(t) else int(t) for t in drawn["tokens"]],
        "integrated_lr": None if summed is None else _short(pd.Series(summed)),
        "value": _short(drawn["value"]),
        "line": _short(drawn["line"]),
    }


def _short(values: "pd.Series[float]") -> list[float]:
    """Six significant digits: more than a screen shows, and half the bytes."""
    return [float(f"{value:.6g}") for value in values]


def public_events(public: Run) -> list[dict[str, Any]]:
    """What the catalogue says happened to the run inside its log; plans are left out."""
    entry = load_catalogue().get(public.name)
    if entry is None:
        return []
    last = int(public.table["step"].max())
    happened = [event for event in entry.events if not event.planned and event.step <= last]
    sums = integrated_lr(public, np.array([float(event.step) for event in happened])) if happened else None
    summed = None if sums is None else sums.tolist()
    return [
        {
            "done": event.step + 1,
            "tokens": (event.step + 1) * public.facts.tokens_per_step
            if public.facts.tokens_per_step
            else None,
            "integrated_lr": None if summed is None else summed[i],
            "kind": event.kind,
            "what": event.what,
            "source": event.source,
        }
        for i, event in enumerate(happened)
    ]


def _notes(own: list[Run], public: Run, comparison: dict[str, Any]) -> dict[str, str]:
    """The words that depend on the runs: distances, and what the ledger says about levels."""
    distances = [
        f"{pair['own'].rsplit('/', 1)[-1]} {pair['shape_distance']:.3f} "
        f"({pair['interval'][0]:.3f} to {pair['interval'][1]:.3f})"
        for pair in comparison["pairs"]
        if pair["shape_distance"] is not None
    ]
    rows = [row for pair in comparison["pairs"] for row in pair["ledger"]]
    by_aspect = {
        aspect: max((row["consequence"] for row in rows if row["aspect"] == aspect), key=_rank)
        for aspect in {row["aspect"] for row in rows}
    }
    level = max((by_aspect[a] for a in ("training data", "tokenizer", "vocabulary")), key=_rank)
    texts = {run.facts.evaluation_set or f"not stated for {run.name}" for run in [*own, public]}
    return {
        "shape": f"root-mean-square distance in log loss {', '.join(distances)}"
        if distances
        else "no distance can be given, see the ledger",
        "nats": "not comparable" if level == SHAPE_ONLY else level,
        "bpb": by_aspect["evaluation set"],
        "texts": "; ".join(sorted(texts)),
    }


def _rank(consequence: str) -> int:
    return ("comparable", SHAPE_ONLY, "not comparable").index(consequence)
