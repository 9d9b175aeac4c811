"""What `maquette forecast` says: a forecast set against the evaluations that have landed, at matched progress."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from analysis.forecast.ladder import FIRST, FRACTIONS, LADDERS, Curve, Ladder, read_curve, read_ladder
from analysis.forecast.methods import Known, Method, find_method
from analysis.forecast.preregistration import Claim, code_version, evaluations_used, preregistration
from experiments.configuration import InputError
from logs.catalogue import load_catalogue
from logs.lookup import stored_run
from logs.store import read_run

ERROR_MEANS = "landed minus predicted; negative: the run is better than forecast"


@dataclass(frozen=True)
class Question:
    """Which run to forecast from which rungs, of which metric, with which pinned floor (nats per token)."""

    run: str
    ladder: Ladder


def ask(
    run: str, rungs: list[str] | None = None, metric: str | None = None, floor: float | None = None
) -> Question:
    """The ladder of `run`, published or given.

    Raises:
        InputError: no ladder of the run is known and none, or one without metric or floor, is given.
    """
    known = LADDERS.get(run)
    if known is None and not rungs:
        close = get_close_matches(run, LADDERS, n=1)
        hint = f"did you mean {close[0]}? If not, " if close else ""
        raise InputError(
            f"no ladder of {run!r} is known (there is one for {', '.join(LADDERS)}); {hint}name its smaller runs "
            "with --rungs"
        )
    if known is None and (metric is None or floor is None):
        raise InputError(
            f"for the rungs of {run}, name the evaluation with --metric and the floor with --floor"
        )
    names = tuple(rungs) if rungs else known.rungs if known else ()
    metric = metric or (known.metric if known else "")
    if floor is None:
        floor = known.floor if known else 0.0
    return Question(
        run, Ladder(names, metric, floor, known.source if known and not rungs else "given by hand")
    )


def read_known(question: Question, store: Path) -> Known:
    """The curves a forecast starts from.

    Raises:
        InputError: a run is not stored, lacks the metric or its facts, or the rungs do not suit.
    """
    ladder = question.ladder
    target = read_curve(stored_run(question.run, store), ladder.metric)
    rungs = read_ladder([stored_run(name, store) for name in ladder.rungs], ladder.metric, target)
    lowest = min(float(curve.loss.min()) for curve in rungs)
    if not 0 <= ladder.floor < lowest:
        raise InputError(
            f"--floor {ladder.floor:g} must lie below every loss of the rungs; the lowest is {lowest:.4f}"
        )
    return Known(target, rungs, ladder.floor, _mix_change(question.run, target.steps))


def _mix_change(run: str, steps: int) -> float | None:
    """Fraction of the run at which its mix first changed, by the catalogue; None where none has happened."""
    entry = load_catalogue().get(run)
    changes = [e.step for e in entry.events if e.kind == "data" and not e.planned] if entry else []
    return min(changes) / steps if changes else None


def forecast_document(
    question: Question, known: Known, method: Method, at_step: int | None = None, until: int | None = None
) -> dict[str, Any]:
    """The keys of `maquette forecast --json`.

    Points are the landed evaluations from 5 % of the run on and every 5 % of it; with `at_step` that one. `error`
    is `ERROR_MEANS`. `until`: use nothing of the run's own past beyond this step.

    Raises:
        InputError: `at_step` lies before 5 % of the run, beyond its end, or in what the method has seen.
    """
    target = known.target
    seen = target if until is None else target.until((until + 1) / target.steps)
    limited = Known(seen, known.rungs, known.floor, known.mix_changed)
    start = float(seen.fraction[-1]) if method.uses_past and len(seen.fraction) else FIRST
    rows = _wanted(target, at_step, start, method)
    band = method.forecast(limited, np.array([fraction for fraction, _, _ in rows]))
    points = []
    for (fraction, step, landed), predicted, low, high in zip(
        rows, band.predicted, band.low, band.high, strict=True
    ):
        points.append(
            {
                "fraction": float(fraction),
                "step": step,
                "predicted": float(predicted),
                "interval": [float(low), float(high)] if np.isfinite(low + high) else None,
                "landed": landed,
                "error": None if landed is None else landed - float(predicted),
                "inside": None
                if landed is None or not np.isfinite(low + high)
                else bool(low <= landed <= high),
            }
        )
    largest = known.rungs[-1]
    return {
        "run": question.run,
        "method": method.name,
        "metric": question.ladder.metric,
        "unit": "nats/token",
        "floor": question.ladder.floor,
        "rungs": list(question.ladder.rungs),
        "source": question.ladder.source,
        "extrapolation": target.flops / largest.flops,
        "error_means": ERROR_MEANS,
        "points": points,
        "warnings": _warnings(known, limited, list(band.notes)),
    }


def _wanted(
    target: Curve, at_step: int | None, start: float, method: Method
) -> list[tuple[float, int, float | None]]:
    """Fraction, zero-based step and landed loss of each point to forecast, in order."""
    landed = {
        round(f * target.steps) - 1: float(loss) for f, loss in zip(target.fraction, target.loss, strict=True)
    }
    if at_step is not None:
        fraction = (at_step + 1) / target.steps
        if fraction < FIRST:
            raise InputError(
                f"step {at_step} is {100 * fraction:.1f} % of {target.name}: there is no forecast before 5 % of the "
                f"run (step {round(FIRST * target.steps) - 1}), where no rung was evaluated"
            )
        if fraction > 1 + 1 / target.steps:
            raise InputError(
                f"step {at_step} lies beyond the end of {target.name}, which is {target.steps} steps long"
            )
        if method.uses_past and fraction <= start:
            raise InputError(
                f"step {at_step} lies in the past that `{method.name}` has seen; give --until an earlier step"
            )
        value = landed.get(at_step, landed.get(at_step - 1))  # "60k" for the step that finishes 60,000
        return [(min(1.0, fraction), at_step, value)]
    after = start if method.uses_past else 0.0
    rows: list[tuple[float, int, float | None]] = [
        ((step + 1) / target.steps, step, loss) for step, loss in landed.items()
    ]
    rows += [(float(fraction), round(fraction * target.steps) - 1, None) for fraction in FRACTIONS]
    return sorted((row for row in rows if row[0] >= FIRST and row[0] > after), key=lambda row: row[:2])


def _warnings(known: Known, limited: Known, notes: list[str]) -> list[str]:
    ratio = known.target.flops / known.rungs[-1].flops
    warnings = [
        f"{known.target.name} lies {ratio:.3g}x in compute beyond the largest of {len(known.rungs)} rungs",
        *notes,
    ]
    if known.mix_changed is not None:
        warnings.append(
            f"the data mix changed at {100 * known.mix_changed:.1f} % of the run; only `--method mix` heeds it"
        )
    entry = load_catalogue().get(known.target.name)
    warnings += [
        f"planned at step {event.step:,}, and heeded by no method: {event.what}"
        for event in (entry.events if entry else ())
        if event.planned and event.kind in ("data", "model", "schedule")
    ]
    if len(limited.target.fraction) == 0:
        warnings.append("nothing of the run itself has landed")
    return warnings


def preregister_forecast(
    run: str,
    at_step: int | None,
    method_name: str,
    rungs: list[str] | None,
    metric: str | None,
    floor: float | None,
    store: Path,
) -> dict[str, Any]:
    """The preregistration of a forecast at a step of `run` that has not landed yet, by default its last.

    Raises:
        InputError: see `ask`, `read_known` and `forecast_document`; or the run is at that step already.
    """
    question, method = ask(run, rungs, metric, floor), find_method(method_name)
    known = read_known(question, store)
    step = known.target.steps - 1 if at_step is None else at_step
    last = round(float(known.target.fraction[-1]) * known.target.steps) - 1
    if step <= last:
        raise InputError(
            f"{run} has landed up to step {last}: step {step} is past, and what is known cannot be preregistered"
        )
    document = forecast_document(question, known, method, step)
    point = document["points"][0]
    low, high = point["interval"] or (float("nan"), float("nan"))
    claim = Claim(
        run=run,
        metric=document["metric"],
        unit=document["unit"],
        step=step,
        text=f"{document['metric']} of {run} at step {step} will be {point['predicted']:.4f} nats per token, between "
        f"{low:.4f} and {high:.4f} at 95 %",
    )
    law = {"name": method.name, "what": method.what, "floor": known.floor}
    names = (*question.ladder.rungs, run) if method.uses_past else question.ladder.rungs
    data = [evaluations_used(read_run(name, store), document["metric"]) for name in names]
    code = code_version(("across", "curve", "document", "ladder", "methods"))
    return preregistration(claim, law, point["predicted"], (low, high), data, code, document["warnings"])
