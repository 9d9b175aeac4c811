"""Reader of any CSV or TSV table with a column that counts steps: one row per step, one column per metric."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv

from experiments.configuration import InputError
from logs.naming import canonical_names, load_names
from logs.readers import NotALog, Sample, take_sample
from logs.readers.opened import open_bytes
from logs.schema import AXES, Quirk, Run, make_table, unit_of

NAME = "csv"
VERSION = "1"
FALLBACK = True

DELIMITERS = (",", "\t", ";")


def matches(sample: Sample) -> bool:
    """Lines most of which have the same number of cells, names in the first, numbers in the second; or a lone
    header that names the steps."""
    return not sample.binary and (find_delimiter(sample) or _lone_header(sample)) is not None


def _lone_header(sample: Sample) -> str | None:
    """The delimiter of a header that counts steps and has nothing below it, or None."""
    lines = [line for line in sample.lines if line.strip()]
    if len(lines) != 1 or not sample.whole or lines[0].lstrip()[:1] in "{[":
        return None
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"') for name in lines[0].split(delimiter)]
        if len(names) > 1 and "step" in canonical_names(list(dict.fromkeys(names))).values():
            return delimiter
    return None


def find_delimiter(sample: Sample) -> str | None:
    """The delimiter under which the head of the file is a table, or None if it is none."""
    lines = [line for line in sample.lines[:20] if line.strip()]
    if len(lines) < 2 or lines[0].lstrip()[:1] in "{[":
        return None
    for delimiter in DELIMITERS:
        try:
            rows = list(csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            continue
        names = [cell.strip() for cell in rows[0]]
        same = sum(len(row) == len(names) for row in rows[1:])
        named = not any(_is_number(name) for name in names)
        numbers = any(_is_number(cell) for row in rows[1:2] for cell in row)
        if len(names) > 1 and named and numbers and 2 * same >= len(rows[1:]):
            return delimiter
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read(path: Path) -> list[Run]:
    """The table as one run, its name left to whoever ingests it.

    Raises:
        NotALog: no rows, or no column counts steps.
        InputError: not a table that can be read, or no row has a step.
    """
    if _lone_header(take_sample(path)) is not None:
        raise NotALog(f"{path}: no rows below the header")
    cells, quirks = _read_cells(path)
    names = canonical_names(cells.column_names)
    if "step" not in names.values():
        known = ", ".join(load_names().axes["step"])
        raise NotALog(
            f"{path}: no column counts steps; it has {', '.join(cells.column_names)}; rename one ({known})"
        )
    columns: dict[str, pd.Series] = {}
    for name, cell in zip(cells.column_names, cells.columns, strict=True):
        target = names[name]
        if target in ("run", "segment"):
            if target == "segment":
                columns[target] = pd.Series(
                    ["" if c is None else _text(c) for c in cell.to_pylist()], dtype="str"
                )
            continue
        numbers, text = as_numbers(cell)
        if text:
            quirks.append(
                Quirk(
                    kind="text_value",
                    count=text,
                    where=f"column {name}",
                    action="no number; left in the file",
                )
            )
        if target in AXES or numbers.null_count < len(numbers):
            columns[target] = pd.Series(pd.arrays.ArrowExtensionArray(numbers))
    table, without_step = _with_whole_steps(pd.DataFrame(columns))
    if without_step:
        quirks.append(
            Quirk(
                kind="no_step",
                count=without_step,
                where="rows",
                action="no whole-number step from 0 up; left out",
            )
        )
    if table.empty:
        raise InputError(f"{path}: no row has a whole number from 0 up in its step column")
    return [
        Run(
            "",
            table,
            {metric: unit_of(metric) for metric in table.columns[len(AXES) :]},
            quirks=tuple(quirks),
        )
    ]


def _read_cells(path: Path) -> tuple[pa.Table, list[Quirk]]:
    """The cells of the file as Arrow columns, an empty cell as null; lines that do not fit are counted."""
    broken: list[int] = []

    def skip(row: pacsv.InvalidRow) -> str:
        broken.append(row.number)
        return "skip"

    delimiter = find_delimiter(take_sample(path)) or ","
    try:
        with open_bytes(path) as stream:
            cells = pacsv.read_csv(
                stream,
                read_options=pacsv.ReadOptions(use_threads=False),
                parse_options=pacsv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
                convert_options=pacsv.ConvertOptions(null_values=[""], strings_can_be_null=True),
            )
        names = cells.column_names
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as a table: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: the header is not UTF-8 text; save the file as UTF-8") from None
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path}: the column {', '.join(map(repr, twice))} stands twice; rename one")
    if not broken:
        return cells, []
    torn = broken[-1] == cells.num_rows + len(broken) + 1 and not _ends_with_newline(path)
    where = f"line {', '.join(str(line) for line in broken[:5])}"
    kind, action = (
        ("torn_tail", "the last line was cut off; left out")
        if torn and len(broken) == 1
        else ("broken_line", "another number of cells than the header; left out")
    )
    return cells, [Quirk(kind=kind, count=len(broken), where=where, action=action)]


def _ends_with_newline(path: Path) -> bool:
    last = b""
    with open_bytes(path) as stream:
        while data := stream.read(2**20):
            last = data[-1:]
    return last == b"\n"


def as_numbers(cells: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """A column as doubles, and how many of its cells are no number (null in the result). NaN stays NaN."""
    try:
        return cells.cast(pa.float64()), 0
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        values: list[float | None] = []
        text = 0
        for cell in cells.to_pylist():
            number = float(_text(cell)) if _is_number(_text(cell)) else None
            text += cell is not None and number is None
            values.append(number)
        return pa.chunked_array([pa.array(values, pa.float64(), from_pandas=False)]), text


def _text(cell: object) -> str:
    """A cell that is no number as text; bytes that are not UTF-8 show as U+FFFD."""
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _with_whole_steps(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The rows whose step is a whole number from 0 up, as a table of the schema, and how many had none."""
    step = rows["step"].to_numpy("float64", na_value=np.nan)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(step) & (np.floor(step) == step) & (step >= 0) & (step < 2**53)
    kept = rows[whole].reset_index(drop=True).assign(step=step[whole].astype("int64"))
    for axis in ("tokens", "samples", "wall_time"):
        if axis in kept:
            values = kept[axis].to_numpy("float64", na_value=np.nan)
            if axis != "wall_time":
                values = np.where(np.isfinite(values), np.floor(values), np.nan)
            kept[axis] = pd.array(pd.array(values, "Float64"), "Float64" if axis == "wall_time" else "Int64")
    return make_table(kept, run=""), int((~whole).sum())
