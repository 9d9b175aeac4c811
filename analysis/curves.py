"""Curves of a run on the axes that runs of different size can share, and how curves are drawn.

Nothing here smooths a curve that is compared; `debiased_average` is for the eye and `keep_extremes` for
drawing long logs without losing a spike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

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
        base: the column it is proportional to, `done` (steps done, step + 1) or `tokens`.
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
}


def points(run: Run, metric: str) -> pd.DataFrame:
    """The finite logged points of `metric`: columns `step, done, tokens, value`, sorted by step.

    `tokens` is taken from the log, else from `tokens_per_step`, else NaN.

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
    return pd.DataFrame({"step": series["step"], "done": done, "tokens": tokens, "value": series["value"]})


def axis_values(run: Run, rows: pd.DataFrame, axis: str) -> Numbers | None:
    """x of `rows` (from `points`) on `axis`, or None where the run's facts do not give it."""
    factor = AXES[axis].factor(run.facts)
    base = rows[AXES[axis].base].to_numpy("float64")
    if factor is None or not np.isfinite(base).all():
        return None
    return base * factor


def has_metric(run: Run, metric: str) -> bool:
    """Whether the run logged at least one finite value of `metric`."""
    return metric in run.metrics and bool(np.isfinite(run.series(metric)["value"]).any())


def keep_extremes(y: Numbers, most: int) -> NDArray[np.intp]:
    """Indices of at most about `most` points that keep each stretch's first, lowest, highest and last point.

    A spike of one step survives any reduction, unlike with strides or averages. `y` is in drawing order and
    finite. Returns all indices when there are no more than `most`.
    """
    n = len(y)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, max(1, most // 4) + 1).astype(int)
    kept = {
        index
        for lo, hi in pairwise(edges)
        for index in (lo, lo + int(np.argmin(y[lo:hi])), lo + int(np.argmax(y[lo:hi])), hi - 1)
    }
    return np.array(sorted(kept))


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


def break_at_holes(x: Numbers, fraction: float = 0.015) -> NDArray[np.intp]:
    """Indices before which a drawn line must break: gaps of more than `fraction` of the span of `x`
    that are also ten times the usual gap, so that nothing is drawn where nothing was logged."""
    if len(x) < 3:
        return np.array([], dtype=np.intp)
    gaps = np.diff(x)
    wide = (gaps > fraction * (x[-1] - x[0])) & (gaps > 10 * np.median(gaps))
    return np.flatnonzero(wide) + 1
