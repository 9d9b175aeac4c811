"""Training loss falls while evaluation rises."""

import numpy as np

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve

FEWEST = 5
"""Evaluations below which a minimum among them may be chance."""

RISEN = 0.01
"""Share of its lowest value by which an evaluation must rise: repeated evaluations on one set scatter less."""


def overfitting(train: Curve, evaluation: Curve) -> Finding | None:
    """The evaluation's last values lie above its lowest, while the training loss went on falling.

    The last value is the lowest of the last two, so that a single bad evaluation is none.
    """
    if len(evaluation) < FEWEST or len(train) < FEWEST:
        return None
    lowest = int(np.argmin(evaluation.value))
    if lowest >= len(evaluation) - 2:
        return None
    best, last = float(evaluation.value[lowest]), float(evaluation.value[-2:].min())
    later = np.abs(np.diff(evaluation.value[lowest:], n=2)) if len(evaluation) - lowest > 3 else np.zeros(1)
    scatter = 1.4826 * float(np.median(later)) / np.sqrt(6)  # of second differences, blind to the trend
    if last - best < max(RISEN * best, 3 * scatter):
        return None
    then = int(np.clip(np.searchsorted(train.step, evaluation.step[lowest]), 0, len(train) - 1))
    fallen = float(train.trend[then] - train.trend[-1])
    if fallen < max(RISEN / 2 * abs(float(train.trend[then])), float(np.median(train.noise)) / 2):
        return None
    return Finding(
        kind="overfitting",
        severity="warning",
        says=f"{evaluation.metric} {best:.4g} at step {evaluation.step[lowest]:,} -> {evaluation.value[-1]:.4g} at "
        f"step {evaluation.step[-1]:,}, while {train.metric} fell: {train.trend[then]:.4g} -> {train.trend[-1]:.4g}",
        onset_step=int(evaluation.step[lowest]),
        peak_step=int(evaluation.step[lowest + int(np.argmax(evaluation.value[lowest:]))]),
        metric=evaluation.metric,
        numbers={"best": best, "last": float(evaluation.value[-1]), "train_fell_by": fallen},
        rows=rows_around(evaluation.step, evaluation.value, lowest, len(evaluation) - 1),
    )
