"""The largest rung of an own ladder from the smaller ones, before it is trained.

The law is the power law of `maquette fit power-law` through the smaller rungs' final losses. With three smaller
rungs or more its interval is Student's. Two leave no residual, so nothing at the end of the runs says how straight
the line is; but the line between the same two rungs at earlier fractions of their runs has other slopes, at less
compute. How fast the slope has moved with compute, and how it scatters, is what the interval allows it to move on.
"""

from typing import Any

import numpy as np
from scipy.stats import norm

from analysis.curves import has_metric
from analysis.forecast.across import UPPER, fit_line
from analysis.forecast.ladder import Curve, Numbers, read_curve
from analysis.forecast.preregistration import Claim, code_version, evaluations_used, preregistration
from experiments.configuration import InputError
from logs.schema import Run

METRIC = "eval/mean/loss"
FINISHED = 0.98
"""Least share of its steps that a rung must have done: the loss in the middle of a run is not its final loss."""

SLOPES_FROM = 0.2
"""Slopes count from this fraction on; before it the runs are in their first descent."""


def preregister_largest(
    rungs: list[Run], name: str, flops: float, steps: int, metric: str = METRIC
) -> dict[str, Any]:
    """The preregistration of the final `metric` of a run that is larger than all `rungs`.

    Args:
        rungs: finished smaller runs, on the same data.
        name: the run's name in the store; flops: training FLOPs of the whole of it, without the LM head; steps: its
            optimizer steps.

    Raises:
        InputError: fewer than two rungs, a rung that is not smaller, not finished or without the metric, or with
            too few evaluations in common.
    """
    curves = _finished(rungs, name, flops, metric)
    cost, final = np.array([c.flops for c in curves]), np.array([c.loss[-1] for c in curves])
    line = fit_line(cost, final, floor=0.0)
    predicted, low, high = line.predict(flops)
    law: dict[str, Any] = {"name": "power-law", "A": float(np.exp(line.intercept)), "alpha": line.alpha}
    if len(curves) > 2:
        law["interval"] = f"Student's, {line.dof} degrees of freedom"
    else:
        half = _half_width(curves, flops)
        low, high = (float(predicted * np.exp(side * half)) for side in (-1, 1))
        law["interval"] = "movement of the slope between two rungs over their runs"
    ratio = flops / cost[-1]
    claim = Claim(
        run=name,
        metric=metric,
        unit="nats/token",
        step=steps - 1,
        text=f"{metric} of {name} after {steps} steps ({flops:.4g} FLOPs) will be {predicted:.4f} nats per token, "
        f"between {low:.4f} and {high:.4f} at 95 %",
    )
    warnings = [f"{len(curves)} rungs, the largest {ratio:.3g}x smaller in compute than {name}"]
    data = [evaluations_used(run, metric) for run in sorted(rungs, key=lambda run: run.name)]
    code = code_version(("across", "ladder", "largest"))
    return preregistration(claim, law, predicted, (low, high), data, code, warnings)


def _finished(rungs: list[Run], name: str, flops: float, metric: str) -> list[Curve]:
    """The curves of the rungs, smallest first."""
    if len(rungs) < 2:
        raise InputError(
            f"{len(rungs)} smaller run for the forecast of {name}: a line needs at least two rungs"
        )
    for fact in ("tokenizer", "data", "data_version", "evaluation_set"):
        values = sorted({str(getattr(run.facts, fact)) for run in rungs})
        if len(values) > 1:
            raise InputError(f"the rungs differ in {fact} ({', '.join(values)}): their losses share no law")
    for run in rungs:
        if not has_metric(run, metric):
            raise InputError(f"run {run.name} has no `{metric}`; it logs {', '.join(run.metrics)}")
    curves = sorted((read_curve(run, metric) for run in rungs), key=lambda curve: curve.flops)
    for curve in curves:
        if curve.fraction[-1] < FINISHED:
            raise InputError(
                f"run {curve.name} was last evaluated at {100 * curve.fraction[-1]:.0f} % of its steps; a forecast of "
                "a final loss needs final losses"
            )
    if flops <= curves[-1].flops:
        raise InputError(f"{curves[-1].name} is not smaller than {name}; a forecast goes from small to large")
    if curves[0].flops >= curves[-1].flops:
        raise InputError(
            f"the rungs {', '.join(c.name for c in curves)} have the same compute: no line through them"
        )
    return curves


def slopes(small: Curve, large: Curve) -> tuple[Numbers, Numbers]:
    """log of the fraction, and slope of log loss over log compute between two rungs, at each evaluation of the
    smaller one that both have from `SLOPES_FROM` on."""
    distance = np.log(large.flops / small.flops)
    found = [
        (float(np.log(fraction)), float(np.log(there / here) / distance))
        for fraction, here in zip(small.fraction, small.loss, strict=True)
        if fraction >= SLOPES_FROM and (there := large.at(float(fraction))) is not None
    ]
    if len(found) < 3:
        raise InputError(
            f"{small.name} and {large.name} share {len(found)} evaluations from {100 * SLOPES_FROM:.0f} % of their "
            "runs on; an interval needs at least 3"
        )
    moments, values = (np.array(column) for column in zip(*found, strict=True))
    return moments, values


def _half_width(curves: list[Curve], flops: float) -> float:
    """Half the 95 % interval in log loss: normal, its deviation the slope's movement over the way to the target
    and its scatter, times that way."""
    small, large = curves
    moments, values = slopes(small, large)
    rate, start = np.polyfit(moments, values, 1)
    scatter = float(np.std(values - np.polyval([rate, start], moments), ddof=2)) if len(values) > 2 else 0.0
    between_middles = (
        np.log(flops / small.flops) / 2
    )  # from the middle of the line to that of its continuation
    onward = np.log(flops / large.flops)
    return float(norm.ppf(UPPER) * onward * np.hypot(rate * between_middles, scatter))
