"""Reader of the run history that W&B keeps as a Parquet artifact: every logged row, none sampled away."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from logs.naming import canonical_names
from logs.parsing.tables import run_of
from logs.readers import Sample, parquet_table
from logs.schema import Run, as_arrow

NAME = "wandb-history"
VERSION = "1"

COUNTER = "_step"
OF_WANDB = {COUNTER, "_timestamp", "_runtime"}


def matches(sample: Sample) -> bool:
    """A Parquet table with W&B's own counter and one of its clocks."""
    if not parquet_table.matches(sample):
        return False
    columns = OF_WANDB & set(parquet_table.column_names(sample.path))
    return COUNTER in columns and len(columns) > 1


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Raises:
        InputError: damaged, too large, or no row has a step.
    """
    table = parquet_table.read_table(path, counter_as_step)
    return [with_own_steps(run_of(table.frame, table.quirks))]


def counter_as_step(columns: Sequence[str]) -> dict[str, str]:
    """The canonical names of W&B's columns: `_step` is the step, a metric that counts steps keeps its name."""
    others = [name for name in columns if name != COUNTER]
    return {**_names(others), COUNTER: "step"}


def _names(columns: Sequence[str]) -> dict[str, str]:
    """Canonical names, but that of a metric which counts steps."""
    return {name: name if target == "step" else target for name, target in canonical_names(columns).items()}


def with_own_steps(run: Run, counter: str = COUNTER) -> Run:
    """`run`, whose steps are W&B's counter of logged rows, over the steps that it logged itself, if it logged
    a whole number of them in every row; the counter is then kept as a metric. What holds is stated."""
    names = canonical_names(run.metrics)
    own = next((metric for metric, target in names.items() if target == "step"), None)
    if own is None or not _counts_steps(run.table[own]):
        text = f"step = W&B's counter `{counter}` of logged rows; it need not be the iteration"
        return replace(run, inferred=(*run.inferred, text))
    table = run.table.assign(step=run.table[own].to_numpy("float64").astype("int64"))
    table[own] = as_arrow(run.table["step"])
    table = table.rename(columns={own: counter})
    units = {counter if name == own else name: unit for name, unit in run.units.items()}
    text = f"step = the run's own `{own}`; W&B's counter is kept as `{counter}`"
    return replace(run, table=table, units=units, inferred=(*run.inferred, text))


def _counts_steps(column: pd.Series) -> bool:
    """Whether every cell is a whole number from 0 up."""
    values = column.to_numpy("float64", na_value=np.nan)
    with np.errstate(invalid="ignore"):
        return bool(((values >= 0) & (values == np.floor(values)) & (values < 2**53)).all())
