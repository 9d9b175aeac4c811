"""Rows that a reader of a text log collects line by line, and the run that they make."""

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from logs.naming import canonical_names
from logs.parsing.text_lines import MOST_SHOWN, Notes, lines_as_text
from logs.readers import NotALog
from logs.schema import AXES, Quirk, Run, RunFacts, make_table, unit_of

Integers = NDArray[np.int64]
Cells = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Values of one column: the rows that have one, and the values."""

COUNTS = ("tokens", "samples")
LARGEST_EXACT = 2.0**53


@dataclass
class Rows:
    """What was logged, in the order in which it was written: one row per line, cells by column.

    Columns have the names of the log; `run_from` gives them those of the canonical log.
    """

    step: "array[int]" = field(default_factory=lambda: array("q"))
    line: "array[int]" = field(default_factory=lambda: array("q"))
    writer: "array[int]" = field(default_factory=lambda: array("q"))
    writers: dict[str, int] = field(default_factory=dict)
    cells: "dict[str, tuple[array[int], array[float]]]" = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    def add(self, line: int, step: int, values: Mapping[str, float], writer: str = "") -> None:
        """One row: what `writer` (a rank, or empty) logged for `step` in line `line`."""
        row = len(self.step)
        self.step.append(step)
        self.line.append(line)
        self.writer.append(self.writers.setdefault(writer, len(self.writers)))
        for name, value in values.items():
            rows, column = self._column(name)
            rows.append(row)
            column.append(value)

    def extend(self, line: Integers, step: Integers, writer: Integers, cells: Mapping[str, Cells]) -> None:
        """Many rows at once; `cells` counts them from 0, `writer` holds values of `writers`."""
        start = len(self.step)
        for target, column in ((self.line, line), (self.step, step), (self.writer, writer)):
            target.frombytes(np.ascontiguousarray(column, "int64").tobytes())
        for name, (rows, values) in cells.items():
            self.fill(name, rows + start, values)

    def fill(self, name: str, rows: Integers, values: NDArray[np.float64]) -> None:
        """Values of one column in rows that are there."""
        indices, column = self._column(name)
        indices.frombytes(np.ascontiguousarray(rows, "int64").tobytes())
        column.frombytes(np.ascontiguousarray(values, "float64").tobytes())

    def sort(self) -> None:
        """Put the rows in the order of their lines."""
        line = np.frombuffer(self.line, "int64")
        if (line[1:] >= line[:-1]).all():
            return
        order = np.argsort(line, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.step, self.line, self.writer = (
            array("q", np.frombuffer(column, "int64")[order].tobytes())
            for column in (self.step, self.line, self.writer)
        )
        for name, (index, values) in self.cells.items():
            moved = place[np.frombuffer(index, "int64")]
            self.cells[name] = (array("q", moved.tobytes()), values)

    def _column(self, name: str) -> "tuple[array[int], array[float]]":
        if name not in self.cells:
            self.cells[name] = (array("q"), array("d"))
        return self.cells[name]


def run_from(
    path: Path,
    rows: Rows,
    notes: Notes,
    *,
    facts: RunFacts | None = None,
    units: Mapping[str, str] | None = None,
    inferred: tuple[str, ...] = (),
    own_names: Collection[str] = (),
    nothing: str = "no line of it logs a step",
) -> Run:
    """The run that the rows of one log make, its name left to whoever ingests it.

    Args:
        path: the log, for messages.
        rows: what was logged.
        notes: what was odd.
        facts: what the log states of the run.
        units: units of columns where the format defines them, under the names that `rows` uses.
        inferred: what the reader derived.
        own_names: columns that keep their names, whatever the table of names says.
        nothing: said if there is no row.

    Raises:
        NotALog: no row.
    """
    rows.sort()
    names = _names(rows, own_names)
    columns = {
        names[name]: (np.frombuffer(index, "int64"), np.frombuffer(values, "float64"))
        for name, (index, values) in rows.cells.items()
    }
    stated = {names[name]: unit for name, unit in (units or {}).items() if name in names}
    kept = np.ones(len(rows), bool)
    if notes.torn is not None:
        kept &= np.frombuffer(rows.line, "int64") != notes.torn
    quirks = notes.quirks()
    if len(rows.writers) > 1:
        columns, kept, found = _one_writer(rows, columns, kept)
        quirks += (found,)
    else:
        quirks += _unlabelled_writers(rows, columns, kept)
    if not kept.any():
        raise NotALog(f"{path}: {nothing}")
    table = _table(rows, columns, kept)
    return Run(
        "",
        table,
        {metric: _unit(metric, stated) for metric in table.columns[len(AXES) :]},
        facts or RunFacts(),
        quirks=quirks,
        inferred=inferred,
    )


def _names(rows: Rows, own_names: Collection[str]) -> dict[str, str]:
    """The name that each column takes in the canonical log.

    The step of a row is told by its reader, so no column is one; a column of that very name is `logged step`.
    """
    names = {name: name for name in rows.cells}
    names |= canonical_names([name for name in rows.cells if name not in own_names])
    for name, target in names.items():
        if target in ("run", "segment", "step"):
            names[name] = f"logged {name}" if name in AXES else name
    return names


def _unit(metric: str, stated: Mapping[str, str]) -> str:
    """As the format states it, or as the schema does. Another rank's metric has the unit of the first one's."""
    rank, slash, name = metric.partition("/")
    own = name if slash and rank.startswith("rank") and rank[4:].isdigit() else metric
    return stated.get(own) or unit_of(own)


def _table(rows: Rows, columns: Mapping[str, Cells], kept: NDArray[np.bool_]) -> pd.DataFrame:
    """The kept rows as a table of the schema. A column without a value is none."""
    data: dict[str, pd.Series] = {"step": pd.Series(np.frombuffer(rows.step, "int64"))}
    for name, (index, values) in columns.items():
        column = np.zeros(len(rows))
        absent = np.ones(len(rows), bool)
        column[index], absent[index] = values, False
        if absent[kept].all():
            continue
        if name in COUNTS:
            with np.errstate(invalid="ignore"):
                absent |= ~((column >= 0) & (column <= LARGEST_EXACT))
            column = np.where(absent, 0, column).astype("int64")
        elif name == "wall_time":
            absent |= ~np.isfinite(column)
        array = pa.array(column, mask=absent, from_pandas=False)
        data[name] = pd.Series(pd.arrays.ArrowExtensionArray(array))
    table = pd.DataFrame(data, copy=False)
    return make_table(table if kept.all() else table[kept], run="")


def _one_writer(
    rows: Rows, columns: Mapping[str, Cells], kept: NDArray[np.bool_]
) -> tuple[dict[str, Cells], NDArray[np.bool_], Quirk]:
    """The rows of the rank that logged most; what other ranks logged beside it becomes columns of their own.

    A cell of another rank that equals the first one's at the same step is counted and left out; one that
    differs is kept as `rank<k>/<name>` in that row. Rows for steps of which the first rank says nothing stay
    where they are.
    """
    writer = np.frombuffer(rows.writer, "int64")
    label = {code: name for name, code in rows.writers.items()}
    count = np.bincount(writer[kept], minlength=len(label))
    first = max(label, key=lambda code: (count[code], -_rank(label[code])))
    matched, target = _match(np.frombuffer(rows.step, "int64"), kept & (writer == first), kept)
    result: dict[str, Cells] = {}
    equal = differ = 0
    for name, (index, values) in columns.items():
        own = writer[index] == first
        result[name] = (index[own], values[own])
        if name in AXES:
            continue
        dense = np.full(len(rows), np.nan)
        logged = np.zeros(len(rows), bool)
        dense[index[own]], logged[index[own]] = values[own], True
        for code in np.unique(writer[index[~own]]):
            theirs = (writer[index] == code) & kept[index]
            at, value = target[index[theirs]], values[theirs]
            same = logged[at] & ((dense[at] == value) | (np.isnan(dense[at]) & np.isnan(value)))
            equal, differ = equal + int(same.sum()), differ + int((~same).sum())
            if not same.all():
                result[f"rank{label[code] or '-unlabelled'}/{name}"] = (at[~same], value[~same])
    others = np.flatnonzero(kept & (writer != first))
    shown = [int(line) for line in np.frombuffer(rows.line, "int64")[others[:MOST_SHOWN]]]
    where = lines_as_text(shown, len(others) - len(shown))
    ranks = ", ".join(sorted((name or "without a label" for name in rows.writers), key=_rank))
    action = (
        f"ranks {ranks}; rank {label[first] or 'without a label'} is the run's; of the other ranks' cells "
        f"{equal} are equal to its own and left out, {differ} are kept as rank<k>/<name>; nothing is averaged"
    )
    quirk = Quirk(kind="interleaved_ranks", count=len(others), where=where, action=action)
    return result, kept & ~matched, quirk


FEWEST_STEPS = 5
"""Steps that must be repeated alike before repeating them counts as the way a log is written."""


def _unlabelled_writers(
    rows: Rows, columns: Mapping[str, Cells], kept: NDArray[np.bool_]
) -> tuple[Quirk, ...]:
    """Whether nearly every step is logged equally often in a row, with different values: as by ranks that talk
    at once and have no labels. Which row is whose cannot be told, so nothing is taken out."""
    step, line = np.frombuffer(rows.step, "int64"), np.frombuffer(rows.line, "int64")
    for name, (index, values) in columns.items():
        chosen = kept[index]
        at, cells = index[chosen], values[chosen]
        steps = step[at]
        starts = np.flatnonzero(np.diff(steps, prepend=-1))
        if name in AXES or not FEWEST_STEPS <= len(starts) <= len(steps) // 2:
            continue
        lengths = np.diff(starts, append=len(steps))
        often = int(np.bincount(lengths).argmax())
        alike = lengths == often
        with np.errstate(invalid="ignore"):
            differ = np.maximum.reduceat(cells, starts) > np.minimum.reduceat(cells, starts)
        if often < 2 or alike.mean() < 0.9 or differ[alike].mean() < 0.5:
            continue
        others = np.delete(at, starts)
        shown = [int(number) for number in line[others[:MOST_SHOWN]]]
        action = (
            f"{name} stands {often} times in a row for {int(alike.sum())} of {len(starts)} steps, with different "
            f"values: {often} ranks (or micro-batches) without labels; which is which cannot be told, so all are "
            "kept and the last one counts"
        )
        where = lines_as_text(shown, len(others) - len(shown))
        return (Quirk(kind="interleaved_ranks", count=len(others), where=where, action=action),)
    return ()


def _match(
    step: Integers, own: NDArray[np.bool_], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Integers]:
    """For every row that is not `own`, the nearest own row of the same step; and whether there is one."""
    target = np.arange(len(step))
    home = np.flatnonzero(own)
    if not len(home):
        return np.zeros(len(step), bool), target
    _, code = np.unique(step, return_inverse=True)
    key = code * (len(step) + 1) + target  # sorts by step, then by row
    home = home[np.argsort(key[home])]
    after = np.searchsorted(key[home], key)
    best = np.full(len(step), -1)
    for near in (home[(after - 1).clip(0)], home[after.clip(max=len(home) - 1)]):
        nearer = (best < 0) | (abs(near - target) < abs(best - target))
        best = np.where((code[near] == code) & nearer, near, best)
    matched = (best >= 0) & ~own & kept
    return matched, np.where(matched, best, target)


def _rank(label: str) -> int:
    return int(label) if label.isdigit() else -1
