"""Reader of tables that W&B exports from a chart: `<run> - <metric>` columns, each with `__MIN` and `__MAX`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from logs.naming import canonical_names
from logs.parsing.quoted_lines import cells_of
from logs.parsing.tables import run_of
from logs.readers import NotALog, Sample
from logs.readers.csv_table import read_table
from logs.readers.wandb_history import with_own_steps
from logs.schema import AXES, Quirk, Run, RunFacts, make_table

NAME = "wandb-export"
VERSION = "1"

COUNTER = "Step"
"""How an export names W&B's own counter, which counts calls of `log` and not iterations."""
SEPARATOR = " - "


def matches(sample: Sample) -> bool:
    """A CSV header in which a column stands beside its `__MIN` and its `__MAX`."""
    return bool(sample.lines) and bool(_charted(cells_of(sample.lines[0], ",")))


def _charted(columns: Sequence[str]) -> list[str]:
    """The columns `<run> - <metric>`; `columns` without their `__MIN` and `__MAX`."""
    known = set(columns)
    return [name for name in columns if SEPARATOR in name and {f"{name}__MIN", f"{name}__MAX"} <= known]


def read(path: Path) -> list[Run]:
    """The runs of the chart, each named as in W&B, with the rows in which it logged.

    The step is the chart's horizontal axis, or a metric of the run that counts steps if there is one.

    Raises:
        NotALog: the horizontal axis counts no steps.
        InputError: not a table that can be read, or no row has a step.
    """
    axis = ""

    def axis_as_step(columns: Sequence[str]) -> dict[str, str]:
        nonlocal axis
        axis = columns[0]
        if canonical_names([axis])[axis] != "step":
            raise NotALog(
                f"{path}: the chart's axis is {axis!r}, which counts no steps; export it over steps"
            )
        return {name: name for name in columns} | {axis: "step"}

    read = read_table(path, axis_as_step)
    table = read.frame
    by_run: dict[str, dict[str, str]] = {}
    for column in _charted([str(name) for name in table.columns]):
        name, metric = column.rsplit(SEPARATOR, 1)
        by_run.setdefault(name, {})[metric] = column
    return [_run(name, metrics, table, axis, read.quirks) for name, metrics in by_run.items()]


def _run(name: str, metrics: dict[str, str], table: pd.DataFrame, axis: str, quirks: Sequence[Quirk]) -> Run:
    bounds = {
        f"{metric}{end}": f"{column}{end}" for metric, column in metrics.items() for end in ("__MIN", "__MAX")
    }
    logged = np.logical_or.reduce([table[column].notna().to_numpy() for column in metrics.values()])
    rows = table.loc[logged, ["step", *metrics.values(), *bounds.values()]].reset_index(drop=True)
    rows = rows.rename(columns={column: metric for metric, column in {**metrics, **bounds}.items()})
    sampled = sum(
        int(
            pc.sum(pc.not_equal(*(_cells(rows[f"{metric}{end}"]) for end in ("__MIN", "__MAX")))).as_py() or 0
        )
        for metric in metrics
    )
    found = list(quirks)
    if sampled:
        action = "the export holds one point of several; lowest and highest kept as `__MIN` and `__MAX`"
        found.append(Quirk(kind="sampled_history", count=sampled, where="cells", action=action))
    else:
        rows = rows.drop(columns=list(bounds))
    names = {
        name: name if target in AXES else target for name, target in canonical_names(list(metrics)).items()
    }
    ends = {f"{name}{end}": f"{target}{end}" for name, target in names.items() for end in ("__MIN", "__MAX")}
    run = run_of(make_table(rows.rename(columns={**names, **ends}), run=""), found, name)
    run = replace(run, facts=RunFacts(title=name))
    return with_own_steps(run, COUNTER) if axis == COUNTER else run


def _cells(column: pd.Series) -> pa.ChunkedArray:
    return column.array._pa_array
