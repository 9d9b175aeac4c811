"""Several runs in one long table: told by a column that is known to name runs, or by one whose value is another
one exactly where the steps start again."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from logs.naming import load_names
from logs.parsing.tables import Table, run_of
from logs.schema import AXES, Quirk, Run

PARTS_OF_A_RUN = re.compile(r"epoch|pass|cycle|phase|stage|attempt|restart|resum|segment", re.IGNORECASE)
"""Columns whose values a single run goes through one after the other."""


def runs_of(table: Table) -> list[Run]:
    """The run in a table, its name left to whoever ingests it, or the runs, each named by its column."""
    column = _by_name(table) or _by_restarts(table)
    if column is None:
        return [run_of(table.frame, table.quirks)]
    own = table.own.get(column, column)
    quirks = [
        Quirk(**{**quirk.model_dump(), "where": f"{quirk.where} (all runs of the file)"})
        for quirk in table.quirks
        if (quirk.kind, quirk.where) != ("text_value", f"column {own}")
    ]
    how = "which names runs" if column == "run" else "whose value changes where the steps start again"
    text = f"run = the column `{own}`, {how}"
    runs: list[Run] = []
    for word, rows in _groups(table, column):
        name = word if column in table.labels and not word.isdigit() else f"{own}-{word}"
        run = run_of(table.frame.take(rows).reset_index(drop=True), quirks, name)
        runs.append(replace(run, inferred=(text,)))
    return runs


def _by_name(table: Table) -> str | None:
    named = table.labels.get("run")
    return "run" if named is not None and len(named.dictionary) > 1 else None


def _by_restarts(table: Table) -> str | None:
    """The first column that is constant from one start of the steps to the next and never again the same."""
    step = table.frame["step"].to_numpy()
    back = step[1:] < step[:-1]
    if not back.any():
        return None
    known = {*AXES, *load_names().metrics}
    for column, own in table.own.items():
        if column in known or column != own or PARTS_OF_A_RUN.search(column):
            continue
        values = _values(table, column)
        if values is None:
            continue
        starts = np.flatnonzero(np.diff(values)) + 1
        if not len(starts) or not back[starts - 1].all():
            continue
        different = len(np.unique(values[[0, *starts]])) == len(starts) + 1
        if different and starts[0] > 1 and (step[starts] <= step[1]).all():  # a resume starts further on
            return column
    return None


def _values(table: Table, column: str) -> np.ndarray | None:
    """The column as numbers, words by their number; None if a cell is empty or a fraction."""
    if column in table.labels:
        return table.labels[column].indices.to_numpy()
    if column not in table.frame:
        return None
    cells = table.frame[column].array._pa_array
    if cells.null_count:
        return None
    values = cells.to_numpy()
    with np.errstate(invalid="ignore"):
        return values if (np.floor(values) == values).all() else None


def _groups(table: Table, column: str) -> Iterator[tuple[str, np.ndarray]]:
    """The names in the order in which they first occur, and the rows of each."""
    if column in table.labels:
        words = table.labels[column].to_pandas()
    else:
        words = table.frame[column].map(lambda value: f"{value:.0f}")
    codes, names = pd.factorize(words)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for i, name in enumerate(names):
        yield str(name), order[bounds[i] : bounds[i + 1]]
