"""Reader of any CSV or TSV table with a column that counts steps: one row per step, one column per metric."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.configuration import InputError
from logs.naming import canonical_names
from logs.parsing.csv_rows import Layout, row_blocks
from logs.parsing.numerals import COMMA, ONE_MARK, find_numerals
from logs.parsing.quoted_lines import is_number, logical_rows
from logs.parsing.several_runs import runs_of
from logs.parsing.tables import COUNTS, Table, is_name, table_of
from logs.readers import NotALog, Sample, take_sample
from logs.schema import Run

NAME = "csv"
VERSION = "3"
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
        named = not any(_is_numeral(name) for name in names)
        numbers = any(_is_numeral(cell) for row in rows[1:2] for cell in row)
        if len(names) > 1 and named and numbers and 2 * same >= len(rows[1:]):
            return delimiter
    return None


def _is_numeral(cell: str) -> bool:
    return is_number(cell) or (any(map(str.isdigit, cell)) and bool(ONE_MARK.fullmatch(cell.strip())))


def read(path: Path) -> list[Run]:
    """The table as one run, or as several where a column tells them apart; see `several_runs.runs_of`.

    Raises:
        NotALog: no rows, or no column counts steps.
        InputError: not a table that can be read, or no row has a step.
    """
    return runs_of(read_table(path))


def read_table(path: Path, names: Callable[[Sequence[str]], dict[str, str]] = canonical_names) -> Table:
    """The rows of a CSV file and what was odd in them; see `tables.table_of` for `names` and what it raises.

    Raises:
        InputError: a second table stands in the file, or what a column's numbers mean cannot be told.
    """
    sample = take_sample(path)
    if _lone_header(sample) is not None:
        raise NotALog(f"{path}: no rows below the header")
    delimiter = find_delimiter(sample) or ","
    layout = _layout(sample, delimiter, header(sample, delimiter))
    return table_of(path, row_blocks(path, layout), names)


def header(sample: Sample, delimiter: str) -> list[str]:
    """Names of the columns.

    Raises:
        InputError: not UTF-8 text, or a name stands twice.
    """
    first = next(line for line in sample.lines if line.strip())
    names = next(csv.reader([first], delimiter=delimiter))
    if any("\ufffd" in name for name in names):
        raise InputError(f"{sample.path}: the header is not UTF-8 text; save the file as UTF-8")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{sample.path}: the column {', '.join(map(repr, twice))} stands twice; rename one")
    return names


def _layout(sample: Sample, delimiter: str, names: list[str]) -> Layout:
    """What the head of the file shows: where the steps stand, which columns hold text, how numbers are written.

    Raises:
        InputError: what the numbers of a column mean cannot be told.
    """
    canonical = canonical_names(names)
    step = next((i for i, name in enumerate(names) if canonical[name] == "step"), 0)
    rows = _head_rows(sample, delimiter, len(names), step)
    counts = {name for name in names if canonical[name] in COUNTS}
    numerals = find_numerals(sample.path, names, rows, counts, spreadsheet=delimiter != ",")
    text = {
        name
        for i, name in enumerate(names)
        if is_name(name) or any(cells[i] and not is_number(cells[i]) for _, cells in rows[:20])
    }
    text |= {name for name in names if numerals[name] == COMMA}
    return Layout(delimiter, tuple(names), step, frozenset(text), numerals)


def _head_rows(sample: Sample, delimiter: str, width: int, step: int) -> list[tuple[int, list[str]]]:
    """Line and cells of the whole rows below the header, as far as the sample goes."""
    above = next(i for i, line in enumerate(sample.lines) if line.strip()) + 1
    head = "\n".join(sample.lines[above:]).encode()
    data, starts, _ = logical_rows(head, delimiter, width, step)
    try:
        rows = [row for row in csv.reader(io.StringIO(data.decode()), delimiter=delimiter) if row]
    except csv.Error:  # a cell longer than any of a log, of which the blocks tell
        return []
    lines = (above + int(at) + 1 for at in starts)
    return [(line, row) for line, row in zip(lines, rows, strict=False) if len(row) == width]
