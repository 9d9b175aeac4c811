"""How a run compares with public ones whose course was healthy: in form and noise, never in level."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.diagnosis.spikes import FEWEST, MATERIAL, STANDS_OUT
from analysis.diagnosis.trend import Curve, block_medians
from experiments.configuration import Config, parse, read_yaml

FILE = Path(__file__).with_name("reference_runs.yaml")

MEASURES = {
    "loss_at_10_percent": "loss at a tenth of the logged steps over the last loss",
    "loss_at_half": "loss at half of the logged steps over the last loss",
    "scatter": "scatter of the loss around its trend, as a share of it",
    "excursions_per_1000": "points 6 standard deviations above the trend, of 1,000",
    "grad_norm_growth": "gradient norm at the end over its lowest level",
}
"""What is measured of every run. Names and meanings."""


class ReferenceRun(Config):
    """A public run and what was measured of its log; None where the log does not give it."""

    source: str
    loss_at_10_percent: float | None = None
    loss_at_half: float | None = None
    scatter: float | None = None
    excursions_per_1000: float | None = None
    grad_norm_growth: float | None = None


@lru_cache(maxsize=1)
def reference_runs() -> dict[str, ReferenceRun]:
    """The public runs by name.

    Raises:
        InputError: the file has an unknown key, or lacks one.
    """
    return {
        name: parse(ReferenceRun, entry, f"{FILE.name}, {name}") for name, entry in read_yaml(FILE).items()
    }


def measured(loss: Curve, grad_norm: Curve | None) -> dict[str, float | None]:
    """The `MEASURES` of a run; None where its log is too short or lacks the metric."""
    values: dict[str, float | None] = dict.fromkeys(MEASURES)
    if len(loss) >= FEWEST:
        span = loss.step - loss.step[0]
        last = float(np.median(loss.value[-max(3, len(loss) // 50) :]))
        for name, share in (("loss_at_10_percent", 0.1), ("loss_at_half", 0.5)):
            at = int(np.searchsorted(span, share * span[-1]))
            values[name] = float(loss.trend[min(at, len(loss) - 1)]) / last if last > 0 else None
        values["scatter"] = float(np.median(loss.noise / np.maximum(np.abs(loss.trend), 1e-300)))
        out = (loss.z >= STANDS_OUT) & (loss.value - loss.trend >= MATERIAL * np.abs(loss.trend))
        values["excursions_per_1000"] = 1000 * float(out.mean())
    if grad_norm is not None and len(grad_norm) >= FEWEST:
        levels, _ = block_medians(grad_norm, 20)
        if levels.min() > 0:
            values["grad_norm_growth"] = float(np.median(levels[-2:]) / levels.min())
    return values


def against_reference(loss: Curve, grad_norm: Curve | None, name: str) -> dict[str, Any]:
    """The band of the public runs beside the values of the run `name`, which if public is left out of the band.

    Returns:
        `{runs, measures: [{name, means, value, low, high, inside, lowest_run, highest_run}]}`; only what both this
        run and a public one give.
    """
    runs, measures = {key: run for key, run in reference_runs().items() if key != name}, []
    for measure, value in measured(loss, grad_norm).items():
        known = {run: v for run, entry in runs.items() if (v := getattr(entry, measure)) is not None}
        if value is None or not known:
            continue
        lowest, highest = min(known, key=lambda r: known[r]), max(known, key=lambda r: known[r])
        measures.append(
            {
                "name": measure,
                "means": MEASURES[measure],
                "value": float(f"{value:.4g}"),
                "low": known[lowest],
                "high": known[highest],
                "inside": known[lowest] <= float(f"{value:.4g}") <= known[highest],
                "lowest_run": lowest,
                "highest_run": highest,
            }
        )
    return {"runs": {key: run.source for key, run in runs.items()}, "measures": measures}
