"""Curves of a run on the axes that runs of different size can share, and how curves are drawn.

Nothing here smooths a curve that is compared; `debiased_average` is for the eye. `analysis.thinning` draws long
logs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.configuration import InputError
from logs.schema import Run, RunFacts

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """An x axis: how it follows from `step` or `tokens`, and which facts it needs.

    Attributes:
        base: what it is proportional to: `done` (steps done, step + 1), `tokens` or `integrated_lr`.
        factor: what the base is multiplied by, None when the facts are unknown.
        needs: the facts it needs, in words, for the reason given when one is unknown.
    """

    label: str
    base: str
    factor: Callable[[RunFacts], float | None]
    needs: str


AXES: dict[str, Axis] = {
    "fraction": Axis(
        "fraction of the schedule",
        "done",
        lambda f: 1 / f.steps_planned if f.steps_planned else None,
        "steps planned",
    ),
    "tokens": Axis("tokens", "tokens", lambda f: 1.0, "tokens, or tokens per step"),
    "step": Axis("steps done", "done", lambda f: 1.0, "nothing"),
    "flops": Axis(
        "active training FLOPs (without the LM head)",
        "tokens",
        lambda f: f.train_flops_per_token,
        "tokens and training FLOPs per token",
    ),
    "tokens_per_parameter": Axis(
        "tokens per active parameter",
        "tokens",
        lambda f: 1 / f.params_active if f.params_active else None,
        "tokens and active parameters",
    ),
    "integrated_lr": Axis(
        "learning rate summed over steps",
        "integrated_lr",
        lambda f: 1.0,
        "a learning rate logged from its start on",
    ),
}

LATE_START = 0.01
"""A learning rate whose log begins later than this share of its end is not summed: the start would be a guess."""


def points(run: Run, metric: str) -> pd.DataFrame:
    """The finite logged points of `metric`: columns `step, done, tokens, value`, sorted by step.

    `tokens` is taken from the log, else from `tokens_per_step`, else NaN. Bits per token come as nats.

    Raises:
        InputError: the run does not log `metric`, or logged no finite value of it.
    """
    if metric not in run.metrics:
        raise InputError(f"run {run.name} does not log `{metric}`; it logs {', '.join(run.metrics)}")
    series = run.series(metric)
    series = series[np.isfinite(series["value"])].reset_index(drop=True)
    if series.empty:
        raise InputError(f"run {run.name} has no finite value of `{metric}`; there is no curve to compare")
    done = series["step"].to_numpy("float64") + 1 - (run.facts.steps_from or 0)
    tokens = series["tokens"].to_numpy("float64")
    if run.facts.tokens_per_step:
        tokens = np.where(np.isfinite(tokens), tokens, done * run.facts.tokens_per_step)
    value = series["value"].to_numpy("float64") * (math.log(2) if run.units[metric] == "bits/token" else 1.0)
    return pd.DataFrame({"step": series["step"], "done": done, "tokens": tokens, "value": value})


def unit(run: Run, metric: str) -> str:
    """The unit of the values that `points` gives."""
    return "nats/token" if run.units[metric] == "bits/token" else run.units[metric]


def axis_values(run: Run, rows: pd.DataFrame, axis: str) -> Numbers | None:
    """x of `rows` (from `points`) on `axis`, or None where the run's facts and its log do not give it."""
    factor = AXES[axis].factor(run.facts)
    name = AXES[axis].base
    base = integrated_lr(run, rows["step"].to_numpy("float64")) if name == "integrated_lr" else rows[name]
    if factor is None or base is None or not np.isfinite(base).all():
        return None
    return np.asarray(base, "float64") * factor


def integrated_lr(run: Run, step: Numbers) -> Numbers | None:
    """The learning rate summed over all steps up to and with each of `step`, or None where its log begins late.

    Between two logged steps the learning rate is taken as a straight line; before the first one as rising from 0,
    and after the last one as staying, for which at most `LATE_START` of the log is allowed.
    """
    if not has_metric(run, "lr"):
        return None
    rows = points(run, "lr")
    at, lr = rows["step"].to_numpy("float64"), rows["value"].to_numpy("float64")
    first = float(run.facts.steps_from or 0)
    slack = LATE_START * (at[-1] - first)
    if at[0] - first > slack or step.max() > at[-1] + max(slack, 1.0):
        return None
    if at[0] > first:
        at, lr = np.concatenate([[first], at]), np.concatenate([[0.0], lr])
    gaps, mean = np.diff(at), (lr[1:] + lr[:-1]) / 2
    total = lr[0] + np.concatenate([[0.0], np.cumsum(gaps * mean + np.diff(lr) / 2)])
    index = np.clip(np.searchsorted(at, step, side="right") - 1, 0, len(at) - 1)
    since, height = step - at[index], np.interp(step, at, lr)
    return np.asarray(total[index] + since * (height + lr[index]) / 2 + (height - lr[index]) / 2, "float64")


def has_metric(run: Run, metric: str) -> bool:
    """Whether the run logged at least one finite value of `metric`."""
    return metric in run.metrics and bool(np.isfinite(run.series(metric)["value"]).any())


def debiased_average(x: Numbers, y: Numbers, half_life: float) -> Numbers:
    """Exponential average of `y` for the eye, its weights halved every `half_life` of `x` to both sides.

    Debiased: divided by the sum of its weights, so it starts at the first point and not at zero.
    Two-sided, so it does not lag where the curve falls. Weights follow the distance in `x`, so uneven
    sampling does not distort it.
    """
    decay = np.exp2(-np.diff(x) / half_life)
    total, weight = _one_sided_sums(y, decay)
    total_back, weight_back = (sums[::-1] for sums in _one_sided_sums(y[::-1], decay[::-1]))
    return (total + total_back - y) / (weight + weight_back - 1)


def _one_sided_sums(y: Numbers, decay: Numbers) -> tuple[Numbers, Numbers]:
    """Decayed sum of the values and of their weights up to each point."""
    total, weight = np.array(y, dtype="float64"), np.ones(len(y))
    for i, factor in enumerate(decay):
        total[i + 1] += factor * total[i]
        weight[i + 1] += factor * weight[i]
    return total, weight
