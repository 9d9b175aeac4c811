"""Reader of `metrics.csv` as Lightning's CSVLogger writes it: one row for each call of `log`, so that a step and
the end of its epoch are rows of their own with the same `step`, most cells of both empty."""

from pathlib import Path

import numpy as np

from logs.parsing.quoted_lines import cells_of
from logs.parsing.tables import run_of
from logs.readers import Sample
from logs.readers.csv_table import read_table
from logs.schema import Quirk, Run

NAME = "lightning-csv"
VERSION = "1"


def matches(sample: Sample) -> bool:
    """A CSV header with `step` and `epoch` in which some metric is marked as of a step or an epoch, or below
    which cells are empty."""
    rows = [cells_of(line, ",") for line in sample.lines[:20]] if not sample.binary else []
    if not rows or not {"step", "epoch"} <= set(rows[0]):
        return False
    marked = any(name.endswith(("_step", "_epoch")) for name in rows[0])
    return marked or any("" in row for row in rows[1:])


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. `step` counts from zero.

    Raises:
        InputError: not a table that can be read, or no row has a step.
    """
    table = read_table(path)
    quirks = table.quirks
    step = table.frame["step"].to_numpy()
    shared = np.flatnonzero(step[1:] == step[:-1]) + 1
    if len(shared):
        where = f"rows of steps {step[shared[0]]}-{step[shared[-1]]}"
        action = "rows of one step logged at different times; all kept, one row per step in the lineage"
        quirks.append(Quirk(kind="epoch_rows", count=len(shared), where=where, action=action))
    return [run_of(table.frame, quirks)]
