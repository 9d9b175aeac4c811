"""A finding: what happened where, how bad it is, and what shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Severity = Literal["info", "warning", "severe"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "info")
"""`severe`: the run needs a decision now; `warning`: look at it; `info`: good to know, nothing is wrong."""

ROWS_SHOWN = 12
"""Rows of evidence that one finding carries at most."""


@dataclass(frozen=True)
class Finding:
    """One thing that happened to a run.

    Attributes:
        kind: an entry of `advice.yaml`.
        onset_step: the first logged step that shows it; None where it concerns the log as a whole.
        peak_step: where it is worst.
        end_step: the first step at which it is over; None where it is not over when the log ends.
        says: the evidence in one sentence, with numbers.
        metric: what it was seen in.
        numbers: the evidence as plain numbers, lists and texts.
        rows: logged `(step, value)` around it.
    """

    kind: str
    severity: Severity
    says: str
    onset_step: int | None = None
    peak_step: int | None = None
    end_step: int | None = None
    metric: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    rows: tuple[tuple[int, float], ...] = ()


def rows_around(
    step: NDArray[np.int64], value: NDArray[np.float64], first: int, last: int
) -> tuple[tuple[int, float], ...]:
    """Logged points from two before index `first` to two after index `last`, at most `ROWS_SHOWN`: of a longer
    stretch its beginning, its highest point and its end."""
    lo, hi = max(0, first - 2), min(len(step), last + 3)
    index = np.arange(lo, hi)
    if len(index) > ROWS_SHOWN:
        half = ROWS_SHOWN // 2
        peak = lo + int(np.argmax(value[lo:hi]))
        index = np.unique(np.concatenate([index[: half - 1], [peak], index[-half:]]))
    return tuple((int(step[i]), float(f"{value[i]:.6g}")) for i in index)


def worst(findings: Sequence[Finding]) -> Severity | None:
    """The highest severity among the findings."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in found), None)
