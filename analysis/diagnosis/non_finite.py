"""NaN and infinity that the training computed, told apart from values that the log merely lacks."""

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from analysis.diagnosis.finding import Finding
from logs.schema import Run

COUNTED = "number of nan iterations"
"""Megatron's own count of steps with a NaN loss since the line before."""


def non_finite(run: Run, loss: str | None) -> list[Finding]:
    """Metrics with a logged NaN or infinity, and NaN steps that the trainer counted.

    A NaN loss that the log ends with is severe; one in another metric or among finite values a warning.
    """
    findings = []
    for metric in run.metrics:
        cells = run.table[metric].array._pa_array
        if pc.all(pc.is_finite(cells)).as_py() is not False:  # nulls are passed over
            continue
        series = run.series(metric)
        value, step = series["value"].to_numpy(), series["step"].to_numpy()
        if bad := _logged(metric, value, step, metric == loss):
            findings.append(bad)
    if COUNTED in run.metrics and (counted := _counted(run.series(COUNTED))):
        findings.append(counted)
    return findings


def _logged(metric: str, value: np.ndarray, step: np.ndarray, is_loss: bool) -> Finding | None:
    bad = np.flatnonzero(~np.isfinite(value))
    if not len(bad):
        return None
    last = int(bad[-1])
    ends_so = last == len(value) - 1
    trainable = is_loss or metric == "grad_norm"
    nans = int(np.isnan(value[bad]).sum())
    says = f"{metric}: {nans} NaN and {len(bad) - nans} infinite of {len(value)} logged, from step {step[bad[0]]:,} on"
    says += ", and no finite value after that" if ends_so and len(bad) == len(value) - bad[0] else ""
    before = value[: bad[0]][np.isfinite(value[: bad[0]])]
    return Finding(
        kind="non_finite",
        severity="severe" if is_loss and ends_so else "warning" if trainable else "info",
        says=says,
        onset_step=int(step[bad[0]]),
        end_step=None if ends_so else int(step[last + 1]),
        metric=metric,
        numbers={
            "nan": nans,
            "infinite": len(bad) - nans,
            "logged": len(value),
            "last_finite": float(before[-1]) if len(before) else None,
        },
    )


def _counted(series: pd.DataFrame) -> Finding | None:
    count, step = series["value"].to_numpy(), series["step"].to_numpy()
    bad = np.flatnonzero(np.nan_to_num(count) > 0)
    if not len(bad):
        return None
    total = int(np.nansum(count))
    return Finding(
        kind="non_finite",
        severity="warning",
        says=f"the trainer counted {total} steps with a NaN loss, in the lines from step {step[bad[0]]:,} "
        f"to {step[bad[-1]]:,}",
        onset_step=int(step[bad[0]]),
        peak_step=int(step[int(np.nanargmax(count))]),
        end_step=int(step[bad[-1] + 1]) if bad[-1] + 1 < len(step) else None,
        metric=COUNTED,
        numbers={"nan": total},
    )
