"""The curves a forecast is made from: a run and the rungs of its scaling ladder, on fractions of the run."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analysis.curves import points
from experiments.configuration import InputError
from logs.schema import Run, Schedule

Numbers = NDArray[np.float64]

FRACTIONS = np.arange(1, 21) / 20
"""Every 5 % of a run, the fractions at which the public ladder was evaluated."""

FIRST = 0.05
"""No rung was evaluated before 5 % of its run, so nothing is forecast before it."""

NEAR = 0.005
"""An evaluation counts for a nominal fraction within half a percent of the run; the public rungs, whose
evaluations fall on whole steps, stay within 0.1 %."""


@dataclass(frozen=True)
class Ladder:
    """A public run's ladder as its team used it: rungs, metric and the floor (nats per token) they pinned."""

    rungs: tuple[str, ...]
    metric: str
    floor: float
    source: str


LADDERS = {
    "marin-535b": Ladder(
        ("marin-d768", "marin-d1024", "marin-d1536", "marin-d2048"),
        "eval/paloma_macro/loss",
        1.5,
        "marin-community/marin experiments/grug/moe_hero_ep/plot_scaling_ladder.py@74f91ba8",
    )
}


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run over the fraction of it that was done.

    Attributes:
        fraction: steps done over steps planned, `[n]`, ascending.
        loss: `[n]`, nats per token.
        flops: training FLOPs of the whole run on active parameters, without the LM head.
        steps: optimizer steps planned.
    """

    name: str
    fraction: Numbers
    loss: Numbers
    flops: float
    steps: int
    schedule: Schedule | None

    def until(self, fraction: float) -> "Curve":
        """What had landed by `fraction`."""
        known = self.fraction <= fraction + 1e-12
        return replace(self, fraction=self.fraction[known], loss=self.loss[known])

    def since(self, fraction: float) -> "Curve":
        """What landed from `fraction` on."""
        late = self.fraction >= fraction - NEAR
        return replace(self, fraction=self.fraction[late], loss=self.loss[late])

    def at(self, fraction: float) -> float | None:
        """Loss at a nominal fraction: the last evaluation within `NEAR`, else between two; None beyond its end."""
        near = np.flatnonzero(np.abs(self.fraction - fraction) <= NEAR)
        if len(near):
            return float(self.loss[near[-1]])
        if not len(self.fraction) or not self.fraction[0] < fraction < self.fraction[-1]:
            return None
        return float(np.interp(fraction, self.fraction, self.loss))


def read_curve(run: Run, metric: str) -> Curve:
    """The evaluations `metric` of a stored run.

    Raises:
        InputError: the run does not log the metric, or does not state its steps, tokens or FLOPs per token.
    """
    rows = points(run, metric)
    steps, cost = run.facts.steps_planned, run.facts.train_flops_per_token
    tokens = run.facts.tokens_planned or (steps or 0) * (run.facts.tokens_per_step or 0)
    if not steps or not cost or not tokens:
        raise InputError(
            f"run {run.name} does not state its planned steps, its tokens or its training FLOPs per token; "
            "without them it has no fraction and no compute"
        )
    done = rows["done"].to_numpy("float64") / steps
    return Curve(run.name, done, rows["value"].to_numpy("float64"), tokens * cost, steps, run.facts.schedule)


def read_ladder(runs: list[Run], metric: str, target: Curve) -> list[Curve]:
    """The rungs of a ladder, smallest first.

    Raises:
        InputError: fewer than three rungs, two of the same compute, one not smaller than the target, or one
            without an evaluation of the metric at the fractions that are forecast.
    """
    if len(runs) < 3:
        raise InputError(
            f"{len(runs)} rung{'s' * (len(runs) != 1)} for the forecast of {target.name}: a line across rungs and "
            "its error need at least 3; name more with --rungs"
        )
    rungs = sorted((read_curve(run, metric) for run in runs), key=lambda rung: rung.flops)
    for before, after in pairwise(rungs):
        if after.flops <= before.flops * (1 + 1e-9):
            raise InputError(f"rungs {before.name} and {after.name} have the same compute; take one of them")
    if rungs[-1].flops >= target.flops:
        raise InputError(
            f"rung {rungs[-1].name} is not smaller than {target.name}; a forecast goes from small to large"
        )
    for rung in rungs:
        if all(rung.at(fraction) is None for fraction in FRACTIONS):
            raise InputError(
                f"rung {rung.name} has no evaluation between 5 and 100 % of its run: no overlap with the forecast"
            )
    return rungs


def published_tail(rung: Curve, fraction: float) -> float:
    """Loss of a rung beyond its last evaluation as Marin's public forecast takes it: the straight line through
    its last five evaluations at their nominal fractions, plus 0.005 (plot_scaling_ladder.py@74f91ba8)."""
    late = np.round(rung.fraction[-5:] * 20) / 20
    return float(np.polyval(np.polyfit(late, rung.loss[-5:], 1), fraction) + 0.005)


def ladder_losses(rungs: list[Curve]) -> tuple[Numbers, list[str]]:
    """Losses `[fractions, rungs]` at every 5 %, and a sentence for each rung that stopped early.

    Raises:
        InputError: a rung lacks evaluations that are needed and cannot be continued.
    """
    table, notes = np.empty((len(FRACTIONS), len(rungs))), []
    for column, rung in enumerate(rungs):
        missing = []
        for row, fraction in enumerate(FRACTIONS):
            value = rung.at(fraction)
            if value is None:
                if fraction < rung.fraction[-1] or len(rung.fraction) < 5:
                    raise InputError(
                        f"rung {rung.name} has no evaluation at {100 * fraction:.0f} % of its run: the rungs do not "
                        "overlap there"
                    )
                value = published_tail(rung, fraction)
                missing.append(fraction)
            table[row, column] = value
        if missing:
            notes.append(
                f"{rung.name} stopped before {100 * missing[0]:.0f} % of its run: from there on its loss is the line "
                "through its last five evaluations plus 0.005, as published"
            )
    return table, notes
