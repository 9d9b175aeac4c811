"""The ways to forecast a run, by name: `public` is Marin's own, the others try to do better."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from analysis.forecast.across import UPPER, Band, estimated_floor, pinned_floor
from analysis.forecast.curve import own_curve, shared_curve
from analysis.forecast.ladder import FIRST, Curve, Numbers
from experiments.configuration import InputError
from logs.catalogue import FOLDER as CATALOGUE

MIX_STUDY = CATALOGUE.parent / "published/marin/marin_mix_swap_d1536.csv"
MIX_STUDY_SWITCH = 0.25
"""Fraction at which the study's run changed its mix (marin-community/marin issue #9126)."""

ANCHOR_WINDOW = 0.05
"""The latest residual is the mean over the last 5 % of the run that have landed, and residuals are compared
between stretches of that length: single evaluations of the public run scatter by some 0.004 nats."""


@dataclass(frozen=True)
class Known:
    """What a forecast may use: the target as far as it has landed, the rungs, the pinned floor in nats per
    token, and at which fraction the target's data mix changed (None: it did not)."""

    target: Curve
    rungs: list[Curve]
    floor: float
    mix_changed: float | None = None


@dataclass(frozen=True)
class Method:
    """A forecast by name; `uses_past` says whether it needs evaluations of the target itself."""

    name: str
    what: str
    forecast: Callable[[Known, Numbers], Band]
    uses_past: bool = False


def public(known: Known, at: Numbers) -> Band:
    """Marin's public forecast, with intervals."""
    return pinned_floor(known.target, known.rungs, at, known.floor)


def floor(known: Known, at: Numbers) -> Band:
    """The public forecast with its floor estimated."""
    return estimated_floor(known.target, known.rungs, at)


def mix(known: Known, at: Numbers) -> Band:
    """The public forecast corrected for the change of the data mix by the d1536 study.

    The study's gain at the end of a run that changed at 25 % is taken as a share of the loss above the floor, as
    the same at every size, and as growing in proportion to what was trained on the new mix. It is one
    unrepeated run of one size, so it counts as known only to within its own size (one standard deviation).

    Raises:
        InputError: no change of the mix is known for this run.
    """
    if known.mix_changed is None:
        raise InputError(f"no change of the data mix is known for {known.target.name}; use another --method")
    old, new = _mix_study()
    whole = np.log((new - known.floor) / (old - known.floor))
    gain = whole * np.clip(at - known.mix_changed, 0, None) / (1 - MIX_STUDY_SWITCH)
    base = public(known, at)
    z, low, high = (np.log(side - known.floor) for side in (base.predicted, base.low, base.high))
    width = student.ppf(UPPER, np.inf) * np.abs(gain)
    below, above = np.hypot(z - low, width), np.hypot(high - z, width)
    return _above_floor(known.floor, z + gain, below, above, base.notes)


def _mix_study() -> tuple[float, float]:
    """Final macro loss of the d1536 study on the old and on the new mix, nats per token."""
    with Path(MIX_STUDY).open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if (row["subset"], row["metric"]) == ("macro", "loss"):
                return float(row["old_mix"]), float(row["new_mix"])
    raise InputError(f"{MIX_STUDY}: no row of the macro loss")


def anchored(known: Known, at: Numbers) -> Band:
    """The public forecast shifted to where the run stands: its latest residual in log(L - floor) is kept.

    The interval lets the residual wander from there as it has wandered so far: a random walk in the logarithm of
    the fraction done, its step estimated from the stretches of 5 % that have landed.

    Raises:
        InputError: less than two stretches of 5 % have landed.
    """
    past = known.target.since(FIRST)
    stretch = np.floor((past.fraction + 1e-9) / ANCHOR_WINDOW)
    if len(np.unique(stretch)) < 2:
        raise InputError(
            f"run {known.target.name} has landed less than two stretches of 5 %; `anchored` has nothing to hold on to"
        )
    expected = public(known, past.fraction).predicted
    residual = np.log((past.loss - known.floor) / (expected - known.floor))
    means = np.array([residual[stretch == s].mean() for s in np.unique(stretch)])
    middle = np.array([past.fraction[stretch == s].mean() for s in np.unique(stretch)])
    late = past.fraction > past.fraction[-1] - ANCHOR_WINDOW
    latest, scatter = float(residual[late].mean()), _scatter(residual, stretch)
    wander = float(np.mean(np.diff(means) ** 2 / np.diff(np.log(middle))))
    ahead = np.clip(np.log(at / past.fraction[-1]), 0, None)
    half = student.ppf(UPPER, len(means) - 1) * np.sqrt(wander * ahead + scatter**2)
    base = public(known, at)
    z = np.log(base.predicted - known.floor) + latest
    return _above_floor(known.floor, z, half, half, base.notes)


def _above_floor(floor: float, z: Numbers, below: Numbers, above: Numbers, notes: tuple[str, ...]) -> Band:
    """A band given as log(L - floor) and its distances to the interval's two ends."""
    predicted, low, high = (floor + np.exp(side) for side in (z, z - below, z + above))
    return Band(predicted, low, high, notes)


def _scatter(residual: Numbers, stretch: Numbers) -> float:
    """Standard deviation of single residuals around the mean of their stretch; 0 with one in each."""
    within = np.concatenate(
        [residual[stretch == s] - residual[stretch == s].mean() for s in np.unique(stretch)]
    )
    dof = len(within) - len(np.unique(stretch))
    return float(np.sqrt(within @ within / dof)) if dof else 0.0


METHODS = {
    method.name: method
    for method in (
        Method("public", "across rungs at the same fraction, floor pinned", public),
        Method("floor", "the same with the floor estimated", floor),
        Method("mix", "public, corrected for the change of the data mix", mix),
        Method("anchored", "public, shifted to the run's latest evaluations", anchored, True),
        Method(
            "curve",
            "the run's own curve under its learning rate",
            lambda k, at: own_curve(k.target, at),
            True,
        ),
        Method(
            "curve-ladder",
            "the same, with the shape of the rungs' curves",
            lambda k, at: shared_curve(k.target, k.rungs, at),
            True,
        ),
    )
}


def find_method(name: str) -> Method:
    """The method called `name`.

    Raises:
        InputError: there is none; those there are are listed.
    """
    if name not in METHODS:
        raise InputError(f"--method {name}: no such method; there are {', '.join(METHODS)}")
    return METHODS[name]
