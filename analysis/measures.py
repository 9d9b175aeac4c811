"""What can stand on the y axis of an overlay, and in which normal form a pair of runs may be laid over another."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.curves import AXES, axis_values, has_metric, points, unit
from analysis.irreducible import fit_irreducible
from analysis.ledger import COMPARABLE, NOT_COMPARABLE, SHAPE_ONLY, gravest_first
from analysis.shape import Reference, reference_level
from experiments.configuration import InputError
from logs.schema import Run

Numbers = NDArray[np.float64]

LEVEL_OF_TRAINING = (
    "training data", "data version", "data mixture", "tokenizer", "vocabulary", "sequence length",
    "z-loss inside the logged loss", "unit of the loss",
)  # fmt: skip
SIZE = ("architecture", "active parameters", "tokens per batch", "optimizer")
FORM = (
    "schedule shape", "warm-up, share of the schedule", "final learning rate, share of the peak",
    "stretches off the schedule", "tokens per active parameter, planned",
)  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A y axis.

    Attributes:
        metrics: names under which it may be logged, the first that both runs log is taken; empty: the loss that
            the comparison is about.
        aspects: the lines of the ledger that decide whether it can be compared.
        differing: what it is worth where one of these differs or is unknown.
    """

    label: str
    metrics: tuple[str, ...]
    aspects: tuple[str, ...]
    differing: str


MEASURES: dict[str, Measure] = {
    "relative": Measure("loss / its value at the reference", (), FORM, SHAPE_ONLY),
    "loss": Measure("loss, nats per token", (), LEVEL_OF_TRAINING, NOT_COMPARABLE),
    "bpb": Measure(
        "loss, bits per byte",
        ("eval/mean/loss_bpb", "eval/paloma_macro/loss_bpb", "train/loss_bpb"),
        ("evaluation set",),
        NOT_COMPARABLE,
    ),
    "reducible": Measure("loss above its irreducible term", (), ("unit of the loss", *FORM), SHAPE_ONLY),
    "grad_norm": Measure("gradient norm", ("grad_norm",), SIZE, SHAPE_ONLY),
    "lr": Measure("learning rate / peak", ("lr",), (), COMPARABLE),
}


def check_choices(x: str | None, y: str | None, runs: list[Run]) -> None:
    """Raise InputError, listing the choices, unless `x` is an axis and `y` a measure or a metric of all runs."""
    if x is not None and x not in AXES:
        raise InputError(f"--x {x}: not a choice; choices: {', '.join(AXES)}")
    shared = [m for m in runs[0].metrics if m not in MEASURES and all(has_metric(run, m) for run in runs)]
    if y is not None and y not in MEASURES and y not in shared:
        logged = f", or a metric that all runs log: {', '.join(shared)}" if shared else ""
        raise InputError(f"--y {y}: not a choice; choices: {', '.join(MEASURES)}{logged}")


def check_irreducible(floor: float | None, y: str | None) -> None:
    """Raise InputError unless the term to subtract is a finite loss from 0 up, and `y` is what it is taken from."""
    if floor is None:
        return
    if y != "reducible":
        raise InputError("--irreducible is subtracted by --y reducible only; give both or neither")
    if not (np.isfinite(floor) and floor >= 0):
        raise InputError(
            f"--irreducible {floor:g}: not a loss; give a number from 0 up, or leave it to the fit"
        )


def normal_form(own: Run, public: Run, metric: str, rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The x and y in which the two may be laid over each other: the loss itself where its levels mean the same,
    else the loss relative to its value at the reference; over the fraction of the schedule where both state its
    length, else over tokens, else over steps."""
    x = next(
        axis
        for axis in ("fraction", "tokens", "step")
        if all(axis_values(run, points(run, metric), axis) is not None for run in (own, public))
    )
    deciding = _deciding(rows, _aspects("loss", metric))
    return ("tokens" if x == "fraction" and not deciding and _has_tokens(own, public, metric) else x), (
        "relative" if deciding else "loss"
    )


def _has_tokens(own: Run, public: Run, metric: str) -> bool:
    return all(axis_values(run, points(run, metric), "tokens") is not None for run in (own, public))


def _aspects(y: str, metric: str) -> tuple[str, ...]:
    """The ledger's lines that decide about `y`, read from `metric`."""
    if y == "bpb" and metric.startswith("train/"):
        return ("training data", "data version", "data mixture")
    if y in ("loss", metric) and metric.startswith("eval/"):
        return ("evaluation set",) if metric.endswith("_bpb") else ("evaluation set", "tokenizer")
    if y in MEASURES:
        return MEASURES[y].aspects
    return LEVEL_OF_TRAINING if "loss" in y else SIZE


def _deciding(rows: list[dict[str, Any]], aspects: tuple[str, ...]) -> list[dict[str, Any]]:
    return [row for row in gravest_first(rows) if row["aspect"] in aspects and not row["same"]]


def consequence(y: str, metric: str, rows: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """What an overlay of `y` is worth by the ledger, and the lines that decide it, gravest first."""
    deciding = _deciding(rows, _aspects(y, metric))
    if not deciding:
        return COMPARABLE, []
    known = MEASURES.get(y)
    worth = known.differing if known else NOT_COMPARABLE if "loss" in y else SHAPE_ONLY
    if deciding[0]["consequence"] == NOT_COMPARABLE:
        worth = NOT_COMPARABLE
    return worth, deciding


def metric_of(run: Run, other: Run, y: str, loss: str) -> str:
    """The metric from which `y` is read in `run`: one that both log where there is one.

    Raises:
        InputError: the run logs none.
    """
    candidates = (
        (loss,)
        if y in MEASURES and not MEASURES[y].metrics
        else MEASURES[y].metrics
        if y in MEASURES
        else (y,)
    )
    logged = [m for m in candidates if has_metric(run, m)]
    if not logged:
        raise InputError(f"run {run.name} does not log {' or '.join(f'`{m}`' for m in candidates)}")
    return next((m for m in logged if has_metric(other, m)), logged[0])


@dataclass(frozen=True)
class Measured:
    """A run's curve of one measure over one axis: `x` and `y` `[n]` of the logged points, and what was done."""

    run: Run
    metric: str
    x: Numbers
    y: Numbers
    unit: str
    note: str = ""


def measured(
    run: Run, other: Run, x: str, y: str, loss: str, reference: Reference | None, floor: float | None = None
) -> Measured:
    """The curve of `run` as `y` over `x`, beside `other`.

    Args:
        reference: where curves are set to one, on the axis `x`.
        floor: the irreducible term to subtract for `reducible`; None: fitted to this curve.

    Raises:
        InputError: the run's facts do not give the axis, it does not log the measure, or the measure has no
            meaning for it; in words that can stand in a caption.
    """
    metric = metric_of(run, other, y, loss)
    rows = points(run, metric)
    at = axis_values(run, rows, x)
    if at is None:
        raise InputError(f"run {run.name}: {AXES[x].label} needs {AXES[x].needs}, which it does not state")
    value, said, note = rows["value"].to_numpy("float64"), unit(run, metric), ""
    if y == "relative":
        level = reference_level(run, metric, x, reference) if reference else None
        if level is None:
            raise InputError(f"run {run.name} has no positive {metric} in the reference window")
        value, said, note = value / level, "1", f"divided by {level:.5g}"
    elif y == "reducible":
        value, note = _above(run, metric, value, floor)
    elif y == "lr":
        if value.max() <= 0:
            raise InputError(f"run {run.name}: the learning rate is never above zero")
        value, said = value / value.max(), "1"
    return Measured(run, metric, at, value, said, note)


def _above(run: Run, metric: str, value: Numbers, floor: float | None) -> tuple[Numbers, str]:
    if floor is not None:
        if floor >= value.min():
            raise InputError(
                f"--irreducible {floor:g} is not below the lowest {metric} of {run.name}, {value.min():.5g}"
            )
        return value - floor, f"above {floor:.5g}, as given"
    fitted = fit_irreducible(run, metric)
    if fitted is None:
        raise InputError(f"run {run.name}: too few points, or a level curve, to find an irreducible term")
    low, high = fitted.interval
    known = "" if fitted.identified else "; this curve does not fix it, state it with --irreducible"
    above = np.where(value > fitted.value, value - fitted.value, np.nan)
    return above, f"above {fitted.value:.4g} ({low:.4g} to {high:.4g}), fitted to this curve{known}"
