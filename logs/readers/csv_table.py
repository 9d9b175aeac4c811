"""Reader of any CSV or TSV table with a column that counts steps: one row per step, one column per metric.

A file of any length is read in blocks of lines. In a block all cells are taken for numbers; only where that
fails are its cells read as text and looked at one column at a time.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv

from experiments.configuration import InputError
from logs.naming import canonical_names
from logs.parsing.opened import Lines, in_order, line_blocks, open_bytes
from logs.parsing.tables import Block, block_of, is_segment, line_quirk, run_of, table_of
from logs.readers import NotALog, Sample, take_sample
from logs.schema import Quirk, Run

NAME = "csv"
VERSION = "2"
FALLBACK = True

DELIMITERS = (",", "\t", ";")
ONE_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")


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
        return bool(ONE_COMMA.fullmatch(cell.strip()))
    return True


def find_comma(sample: Sample, delimiter: str) -> str:
    """What a comma inside the numbers of the head stands for, a key of `tables.COMMAS`; nothing if no cell
    settles it, as `1,234` does not, or if two cells contradict each other."""
    rows = list(csv.reader(sample.lines[1:], delimiter=delimiter))
    cells = [cell.strip() for row in rows for cell in row if "," in cell]
    thousands = any(THOUSANDS.fullmatch(c) and (c.count(",") > 1 or "." in c) for c in cells)
    decimal = any(ONE_COMMA.fullmatch(c) and not THOUSANDS.fullmatch(c) for c in cells)
    if thousands == decimal:
        return ""
    return "thousands" if thousands else "decimal"


def read(path: Path) -> list[Run]:
    """The table as one run, its name left to whoever ingests it.

    Raises:
        NotALog: no rows, or no column counts steps.
        InputError: not a table that can be read, or no row has a step.
    """
    table, quirks = read_table(path)
    return [run_of(table, quirks)]


def read_table(
    path: Path, names: Callable[[Sequence[str]], dict[str, str]] = canonical_names
) -> tuple[pd.DataFrame, list[Quirk]]:
    """The rows of a CSV file and what was odd in them; see `tables.table_of` for `names` and what it raises."""
    sample = take_sample(path)
    if _lone_header(sample) is not None:
        raise NotALog(f"{path}: no rows below the header")
    delimiter = find_delimiter(sample) or ","
    comma = find_comma(sample, delimiter)
    too_long: list[int] = []
    torn: list[int] = []
    columns = header(sample, delimiter)
    blocks = _blocks(
        path, columns, _text_columns(sample, columns, delimiter), delimiter, comma, too_long, torn
    )
    table, quirks = table_of(path, blocks, names, comma=comma)
    quirks += [line_quirk(kind, at) for kind, at in (("long_line", too_long), ("torn_tail", torn)) if at]
    return table, quirks


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


def _text_columns(sample: Sample, names: list[str], delimiter: str) -> set[str]:
    """The columns that name segments, or in which a cell of the head is no number."""
    cells = zip(*csv.reader(sample.lines[1:20], delimiter=delimiter), strict=False)
    text = {
        name
        for name, column in zip(names, cells, strict=False)
        if any(c and not _is_number(c) for c in column)
    }
    return text | {name for name in names if is_segment(name)}


def _blocks(
    path: Path,
    names: list[str],
    text: set[str],
    delimiter: str,
    comma: str,
    too_long: list[int],
    torn: list[int],
) -> Iterator[Block]:
    """The rows of the file; `too_long` and `torn` take the numbers of lines that are neither rows nor broken."""

    def parse(lines: Lines) -> Block:
        broken: list[int] = []
        data = lines.data
        if not data.isascii():  # Arrow cannot tell of a broken row that is no UTF-8
            data = bytearray(data.decode("utf-8", errors="replace").encode())
        try:
            cells = _cells(data, names, text, delimiter, broken)
        except pa.ArrowInvalid:
            broken.clear()
            cells = _cells(data, names, set(names), delimiter, broken)
        columns = dict(zip(names, cells.combine_chunks().columns, strict=True))
        chunks = {name: column.chunk(0) for name, column in columns.items() if column.num_chunks}
        places, left_out = _places(lines, cells.num_rows, broken)
        return block_of(chunks, places, left_out, comma)

    ended = True
    last: Block | None = None

    def rows(blocks: Iterator[Lines]) -> Iterator[Lines]:
        nonlocal ended
        for lines in blocks:
            ended = lines.data[-1:] in b"\r\n"
            yield _without_header(lines) if lines.first == 1 else lines

    with open_bytes(path) as stream:
        for block in in_order(parse, rows(line_blocks(stream, too_long))):
            if last is not None:
                yield last
            last = block
    if last is not None:
        if last.broken and not ended and last.broken[-1] > max(last.lines, default=0):
            torn.append(last.broken[-1])
            last = replace(last, broken=last.broken[:-1])
        yield last


def _without_header(lines: Lines) -> Lines:
    head = re.match(rb"(\xef\xbb\xbf)?\s*[^\r\n]*(\r\n|\n|\r)?", lines.data)
    cut = head.end() if head else 0
    above = len(lines.data[:cut].splitlines())
    return Lines(lines.first + above, lines.count - above, lines.data[cut:])


def _cells(lines: bytearray, names: list[str], text: set[str], delimiter: str, broken: list[int]) -> pa.Table:
    """The rows in some lines, those of the columns in `text` as bytes, all others as numbers. `broken` takes
    the rows, counted from 1, with another number of cells than the header; they are left out."""

    def skip(row: pacsv.InvalidRow) -> str:
        broken.append(row.number)
        return "skip"

    types = {name: pa.binary() if name in text else pa.float64() for name in names}
    if not lines or lines.isspace():
        return pa.table({name: pa.nulls(0, kind) for name, kind in types.items()})
    return pacsv.read_csv(
        pa.BufferReader(lines),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(lines) + 1),
        parse_options=pacsv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(null_values=[""], strings_can_be_null=True, column_types=types),
    )


def _places(lines: Lines, rows: int, broken: list[int]) -> tuple[Sequence[int] | np.ndarray, list[int]]:
    """The numbers of the lines in which the rows stand, and of those that are `broken`; blank lines, which
    are no rows, count as lines."""
    if not broken and rows == lines.count:
        return range(lines.first, lines.first + rows), []
    filled = np.array([i for i, line in enumerate(lines.data.splitlines()) if line.strip()], int)
    at = np.array(broken, int) - 1
    is_row = np.ones(len(filled), bool)
    is_row[at] = False
    return filled[is_row][:rows] + lines.first, (filled[at] + lines.first).tolist()
