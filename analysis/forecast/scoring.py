"""Which forecast to trust: each method scored by leaving the future out.

Four tests: the run from the first 25, 50 and 75 % of what has landed of it; the largest rung of its ladder from
the smaller ones; each whole rung's own curve; and the v16 sweep's larger budgets from its smaller ones.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.forecast.across import Band, estimate_floor, fit_line, predict_with_floor
from analysis.forecast.ladder import FIRST, Numbers
from analysis.forecast.methods import METHODS, Known
from experiments.configuration import InputError
from logs.catalogue import FOLDER as CATALOGUE

CUTS = (0.25, 0.5, 0.75)
SWEEP = CATALOGUE.parent / "published/marin/marin_v16_leave_future_out.csv"
SWEEP_FLOOR = 1.6
"""The floor that the sweep's published forecast pinned (marin-community/marin issue #4447)."""


@dataclass(frozen=True)
class Score:
    """How a forecast did on what it had not seen: errors in nats per token, `inside` the share of landed values
    within the 95 % interval, `width` the mean width of that interval; None where no interval was given."""

    test: str
    known: str
    method: str
    n: int
    mean_abs: float
    bias: float
    inside: float | None
    width: float | None


def score_band(test: str, known: str, method: str, band: Band, landed: Numbers) -> Score:
    """The score of a forecast; bias is landed minus predicted."""
    error = landed - band.predicted
    bounded = bool(np.isfinite(band.low).all())
    inside = (band.low <= landed) & (landed <= band.high)
    return Score(
        test,
        known,
        method,
        len(landed),
        float(np.abs(error).mean()),
        float(error.mean()),
        float(inside.mean()) if bounded else None,
        float((band.high - band.low).mean()) if bounded else None,
    )


def score_past(test: str, known: Known, methods: tuple[str, ...] = tuple(METHODS)) -> list[Score]:
    """The methods on the rest of a run, from the first 25, 50 and 75 % of what has landed of it.

    A method that does not suit the run (no change of mix, too short a past) is left out.
    """
    scores, target = [], known.target
    end = float(target.fraction[-1])
    for cut in CUTS:
        limited = replace(known, target=target.until(cut * end))
        late = (target.fraction > cut * end) & (target.fraction >= FIRST)
        for method in (METHODS[name] for name in methods):
            try:
                band = method.forecast(limited, target.fraction[late])
            except InputError:
                continue
            said = f"first {100 * cut:.0f} %"
            scores.append(score_band(test, said, method.name, band, target.loss[late]))
    return scores


def score_largest_rung(known: Known) -> list[Score]:
    """Every method on the ladder's largest rung from the others, as `score_past`. Needs four rungs."""
    *smaller, largest = known.rungs
    if len(smaller) < 3:
        raise InputError(f"{len(known.rungs)} rungs: to leave the largest out, 4 are needed")
    return score_past(f"rung {largest.name}", Known(largest, smaller, known.floor))


def score_whole_schedules(known: Known) -> list[Score]:
    """The methods that continue a curve, on every rung that ran to its end, from the first 25, 50 and 75 % of it:
    through the whole decay of the learning rate, which the target has not seen. Shapes come from the other rungs.
    """
    scores = []
    for rung in known.rungs:
        others = [other for other in known.rungs if other is not rung]
        if rung.fraction[-1] > 0.99 and len(others) > 1:
            test = f"rung {rung.name}, its own past"
            scores += score_past(test, Known(rung, others, known.floor), ("curve", "curve-ladder"))
    return scores


def sweep_points(path: Path = SWEEP) -> list[tuple[float, float]]:
    """(FLOPs, landed loss) of the v16 sweep's compute-optimal runs and of the two large runs it forecast."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [
            (float(r["budget_flops"]), r["actual_paloma_macro"].split(" ")[0]) for r in csv.DictReader(stream)
        ]
    return [(flops, float(loss)) for flops, loss in rows if loss]


def score_sweep() -> list[Score]:
    """`public` (floor pinned at 1.6 as published) and `floor` on the sweep: fitted up to 1e19, 3e19, 1e20 and
    3e20 FLOPs, judged on all that is larger."""
    points = sweep_points()
    flops, loss = (np.array(column) for column in zip(*points, strict=True))
    scores = []
    for last in (1e19, 3e19, 1e20, 3e20):
        small = flops <= last * 1.001
        x, y = flops[small], loss[small]
        pinned = fit_line(x, y, SWEEP_FLOOR)
        estimated = estimate_floor(x[None], y[None])
        bands = {
            "public": np.array([pinned.predict(c) for c in flops[~small]]),
            "floor": np.array([predict_with_floor(x, y, estimated, c) for c in flops[~small]]),
        }
        for method, rows in bands.items():
            scores.append(score_band("v16 sweep", f"to {last:.0e}", method, Band(*rows.T), loss[~small]))
    return scores


def score_document(known: Known) -> dict[str, Any]:
    """All scores, and per test the method with the least mean absolute error over its cuts.

    A method competes for a test only where it could be run at every cut of it.
    """
    scores = [
        *score_past(f"{known.target.name}, its own past", known),
        *(score_largest_rung(known) if len(known.rungs) > 3 else []),
        *score_whole_schedules(known),
        *score_sweep(),
    ]
    winners: dict[str, Any] = {}
    for test in dict.fromkeys(score.test for score in scores):
        here = [score for score in scores if score.test == test]
        cuts = len({score.known for score in here})
        means = {
            method: float(np.mean([s.mean_abs for s in here if s.method == method]))
            for method in dict.fromkeys(s.method for s in here)
            if sum(s.method == method for s in here) == cuts
        }
        winners[test] = {"winner": min(means, key=lambda method: means[method]), "mean_abs": means}
    return {"run": known.target.name, "scores": [vars(score) for score in scores], "winners": winners}
