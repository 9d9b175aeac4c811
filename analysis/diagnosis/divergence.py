"""Runs that lost what they had learned, and runs that never learned anything."""

import math

import numpy as np

from analysis.diagnosis.finding import Finding, rows_around
from analysis.diagnosis.trend import Curve, block_medians
from logs.schema import Run

LOST = 0.25
"""Share of what was learned that must be lost for good: more than any recovered public spike has cost."""

UNIGRAM = 0.6
"""Share of its first loss, that of a uniform guess, below which every model comes that learned more than how
frequent each token is: text has about .7 of it as its unigram entropy (7.6 of 10.8 nats for GPT-2's vocabulary)."""

FRESH = 7.0
"""Nats per token above which a first loss must be that of an untrained model, where the vocabulary is unknown."""

LEARNS_BY = 1000
"""Steps by which the public runs are far below `UNIGRAM`: Marin's largest is at .27 of its first loss there."""

STALLED = 0.05
"""Fall over the second half of a log, as a share of the loss, below which it does not learn any more."""


def divergence(curve: Curve) -> Finding | None:
    """The loss ends far above its best level: a quarter of what was learned is gone.

    Levels are medians of up to 40 stretches of the log, so that a spike is none; the last level is the lower of
    the last two, so that one bad stretch at the end is none either while the log goes on.
    """
    if len(curve) < 5:
        return None
    levels, _ = block_medians(curve, 40)
    best = int(np.argmin(levels))
    last = float(np.min(levels[-2:])) if len(levels) > 2 else float(levels[-1])
    start, floor = float(np.max(levels[: best + 1])), float(levels[best])
    learned = max(start - floor, 1e-12)
    lost = (last - floor) / learned
    noise = float(np.median(curve.noise))
    if not np.isfinite([learned, last - floor, noise]).all():  # values whose distance overflows have no level
        return None
    if lost < LOST or last - floor < 6 * noise or best >= len(levels) - 2:
        return None
    bounds = np.linspace(0, len(curve), len(levels) + 1).astype(int)
    left = np.flatnonzero(curve.value[bounds[best] :] > floor + max(3 * noise, 0.02 * learned))
    below = np.flatnonzero(curve.value[bounds[best] :] <= floor + max(3 * noise, 0.02 * learned))
    onset = bounds[best] + (int(below[-1]) + 1 if len(below) else int(left[0]))
    onset = min(onset, len(curve) - 1)
    peak = onset + int(np.argmax(curve.value[onset:]))
    lowest = bounds[best] + int(np.argmin(curve.value[bounds[best] : bounds[best + 1]]))
    says = (
        f"{curve.metric} {curve.value[lowest]:.2f} at step {curve.step[lowest]:,} -> {curve.value[-1]:.2f} at "
        f"step {curve.step[-1]:,}, highest {curve.value[peak]:.2f}; {min(lost, 9.99):.0%} of what was learned is lost"
    )
    return Finding(
        kind="divergence",
        severity="severe",
        says=says,
        onset_step=int(curve.step[onset]),
        peak_step=int(curve.step[peak]),
        metric=curve.metric,
        numbers={"best": float(curve.value[lowest]), "last": float(curve.value[-1]), "share_lost": lost},
        rows=rows_around(curve.step, curve.value, lowest, len(curve) - 1),
    )


def not_learning(curve: Curve, run: Run) -> Finding | None:
    """The loss stays near that of a model that knows how frequent each token is, and no more."""
    if len(curve) < 5 or run.units[curve.metric] not in ("nats/token", "unknown"):
        return None
    levels, _ = block_medians(curve, 40)
    lowest, first = float(levels.min()), float(np.max(curve.value[: max(1, len(curve) // 20)]))
    uniform = math.log(run.facts.vocab_size) if run.facts.vocab_size else None
    if first < (0.9 * uniform if uniform else FRESH):  # it did not begin untrained
        return None
    steps = int(curve.step[-1]) + 1 - (run.facts.steps_from or 0)
    middle = float(levels[: max(1, len(levels) // 2)].min())
    if steps < LEARNS_BY or lowest < UNIGRAM * (uniform or first) or middle - lowest > STALLED * middle:
        return None
    says = (
        f"{curve.metric} never below {curve.value.min():.2f} in {steps:,} steps, first logged {first:.2f}: "
        "no more than how frequent each token is was learned"
    )
    return Finding(
        kind="not_learning",
        severity="severe",
        says=says,
        onset_step=int(curve.step[0]),
        metric=curve.metric,
        numbers={"first": first, "lowest": float(curve.value.min()), "steps": steps},
        rows=rows_around(curve.step, curve.value, 0, len(curve) - 1),
    )


def uniform_guess(run: Run, curve: Curve) -> Finding | None:
    """The last value is that of a uniform guess over the vocabulary: the output layer is dead.

    Only where the vocabulary is known and training is not at its beginning.
    """
    uniform = math.log(run.facts.vocab_size) if run.facts.vocab_size else None
    if uniform is None or int(curve.step[-1]) < LEARNS_BY or run.units[curve.metric] != "nats/token":
        return None
    last = float(curve.value[-1])
    if last < 0.98 * uniform:
        return None
    return Finding(
        kind="divergence",
        severity="severe",
        says=f"{curve.metric} {last:.3f} at step {curve.step[-1]:,}: that of a uniform guess, "
        f"ln {run.facts.vocab_size:,} = {uniform:.3f}",
        onset_step=int(curve.step[-1]),
        peak_step=int(curve.step[-1]),
        metric=curve.metric,
        numbers={"last": last, "uniform": uniform},
    )
