"""Tables of final losses, one row a training run: which cells of a sweep diverged."""

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.diagnosis.finding import Finding
from experiments.configuration import InputError

Numbers = NDArray[np.float64]

FEWEST = 5
"""Cells below which there is no usual loss."""

STANDS_OUT = 10.0
"""Robust standard deviations of the logarithms of all losses."""

FAR = 1.5
"""Factor over the median loss: sizes and budgets of one sweep differ by less in what they reach."""


def loss_column(table: pd.DataFrame) -> str | None:
    """The first column of numbers with `loss` in its name, or None."""
    for name in table.columns:
        if re.search(r"loss", str(name), re.IGNORECASE) and pd.api.types.is_numeric_dtype(table[name]):
            return str(name)
    return None


def usable_losses(table: pd.DataFrame, where: str) -> Numbers:
    """The positive finite losses of the table, `[cells]` at most.

    Raises:
        InputError: no column holds losses.
    """
    column = loss_column(table)
    if column is None:
        raise InputError(f"{where}: neither a training log nor a table with a column of losses")
    loss = table[column].to_numpy("float64")
    return loss[np.isfinite(loss) & (loss > 0)]


def diverged_cells(table: pd.DataFrame, where: str) -> list[Finding]:
    """The rows whose loss is infinite, or far above those of all others; none where too few have a loss.

    Raises:
        InputError: no column holds losses.
    """
    log = np.log(usable_losses(table, where))
    column = loss_column(table)
    if column is None or len(log) < FEWEST:
        return []
    loss = table[column].to_numpy("float64")
    middle = float(np.median(log))
    scale = max(1.4826 * float(np.median(np.abs(log - middle))), 1e-3)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (np.log(loss) - middle) / scale
        far = np.isinf(loss) | ((z >= STANDS_OUT) & (loss >= FAR * np.exp(middle)))
    return [_cell(table, column, i, float(np.exp(middle)), z[i]) for i in np.flatnonzero(far).tolist()]


def _cell(table: pd.DataFrame, column: str, i: int, usual: float, z: float) -> Finding:
    row = table.iloc[i]
    named = {
        str(name): value if isinstance(value, str) else float(value)
        for name, value in row.items()
        if name not in (column, "source") and not pd.isna(value)
    }
    label = ", ".join(f"{name} {value}" for name, value in list(named.items())[:3])
    loss = float(row[column])
    return Finding(
        kind="diverged_cell",
        severity="severe",
        says=f"row {i + 1} ({label}): {column} {loss:.4g}, the usual one is {usual:.4g}",
        metric=column,
        numbers={
            "row": i + 1,
            "cell": named,
            "loss": loss if np.isfinite(loss) else None,
            "usual": usual,
            "z": float(z) if np.isfinite(z) else None,
        },
    )
