"""The rows of a CSV file of any length, in blocks of lines.

In a block all cells are taken for numbers; only where that fails are its cells read as text and looked at one
column at a time, and only where lines and rows do not agree are its quotation marks looked at one by one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from experiments.configuration import InputError
from logs.naming import canonical_names
from logs.parsing.cells import as_text
from logs.parsing.numerals import PLAIN, Numerals
from logs.parsing.opened import Lines, in_order, line_blocks, open_bytes
from logs.parsing.quoted_lines import cells_of, is_number, is_open, logical_rows
from logs.parsing.tables import Block, block_of
from logs.parsing.text_lines import is_cut_off

TAIL_BYTES = 2**16
TAIL_LINES = 2000
"""How much before a last line is looked at to tell whether it was cut off."""


@dataclass(frozen=True)
class Layout:
    """How a CSV file is written.

    Attributes:
        names: of the columns, all different.
        step: place of the column that counts steps; 0 if none does.
        text: columns whose cells are not plain numbers.
        numerals: how the numbers of each column are written.
    """

    delimiter: str
    names: tuple[str, ...]
    step: int
    text: frozenset[str]
    numerals: Mapping[str, Numerals]


def row_blocks(path: Path, layout: Layout) -> Iterator[Block]:
    """The rows below the header in blocks; the last one has none and tells of lines that are neither.

    Raises:
        InputError: another header stands in the file.
    """
    too_long: list[int] = []
    torn: list[int] = []
    with open_bytes(path) as stream:
        lines = _without_torn_tail(map(_without_header, line_blocks(stream, too_long)), layout, torn)
        yield from in_order(partial(_parsed, path, layout), lines)
    yield Block({}, (), odd={"long_line": too_long, "torn_tail": torn})


def _without_header(lines: Lines) -> Lines:
    if lines.first != 1:
        return lines
    head = re.match(rb"(\xef\xbb\xbf)?\s*[^\r\n]*(\r\n|\n|\r)?", lines.data)
    cut = head.end() if head else 0
    above = len(lines.data[:cut].splitlines())
    return Lines(lines.first + above, lines.count - above, lines.data[cut:])


def _without_torn_tail(blocks: Iterator[Lines], layout: Layout, torn: list[int]) -> Iterator[Lines]:
    before = b""
    for lines in blocks:
        if lines.data[-1:] in b"\r\n":
            before = bytes(lines.data[-TAIL_BYTES:])
            yield lines
            continue
        cut = max(lines.data.rfind(b"\n"), lines.data.rfind(b"\r")) + 1  # the file ends in the line after it
        above = (before + lines.data[max(0, cut - TAIL_BYTES) : cut]).decode(errors="replace").splitlines()
        if len(before) + cut >= TAIL_BYTES:
            above = above[1:]  # the end of a line
        last = lines.data[cut:].decode(errors="replace")
        if last.strip() and _is_torn(last, above[-TAIL_LINES:], layout):
            at = len(lines.data[:cut].splitlines())
            torn.append(lines.first + at)
            lines = Lines(lines.first, at, lines.data[:cut])
        yield lines


def _is_torn(last: str, above: Sequence[str], layout: Layout) -> bool:
    """Whether a last line without an end lacks cells, or its last cell is shorter than all those above it are.

    A cell that may be whole is taken for whole.
    """
    cells = cells_of(last, layout.delimiter)
    if is_open(last.encode(), layout.delimiter) or len(cells) < len(layout.names):
        return True
    if len(cells) > len(layout.names):
        return False
    rows = [row for row in (cells_of(line, layout.delimiter) for line in above) if len(row) == len(cells)]
    numerals = layout.numerals.get(layout.names[-1], PLAIN)
    column = [_plain(row[-1], numerals) for row in rows]
    return is_cut_off(last, list(above)) or _is_shorter(
        _plain(cells[-1], numerals), list(filter(None, column))
    )


def _plain(cell: str, numerals: Numerals) -> str:
    return cell.strip().replace(numerals.thousands, "").replace(numerals.decimal, ".")


def _is_shorter(cell: str, column: Sequence[str]) -> bool:
    """Whether a cell is no number below numbers, has fewer decimals than all of them, or does not rise as whole
    ones do."""
    if not cell or not column or not all(map(is_number, column)):
        return False
    if not is_number(cell):
        return True
    finite = [word for word in column if any(map(str.isdigit, word))]
    if cell.strip("+-.0123456789") or not finite:
        return False  # an exponent, or no digits
    if shortest := min(map(_decimals, finite)):
        return _decimals(cell) < shortest
    counts = [int(word) for word in finite if word.isdigit()]
    rising = len(counts) == len(finite) > 1 and all(a < b for a, b in pairwise(counts))
    return rising and cell.isdigit() and int(cell) < counts[-1]


def _decimals(cell: str) -> int:
    """Digits behind the point of a number."""
    return len(re.split("[eE]", cell.partition(".")[2])[0])


def _parsed(path: Path, layout: Layout, lines: Lines) -> Block:
    data = lines.data
    if not data.isascii():  # Arrow cannot tell of a broken row that is no UTF-8
        data = bytearray(data.decode("utf-8", errors="replace").encode())
    rows, misfits = _arrow_rows(data, layout)
    odd: dict[str, Sequence[int]] = {}
    unpaired = b'"' in data and data.count(b'"') % 2  # counting takes longer than not finding one
    if len(rows) == lines.count and not misfits and not unpaired:
        places: Sequence[int] | np.ndarray = range(lines.first, lines.first + lines.count)
    else:
        begun = np.array([i for i, line in enumerate(data.splitlines()) if line], int)
        if b'"' in data and (len(begun) != len(rows) + len(misfits) or unpaired):
            data, begun, stray = logical_rows(data, layout.delimiter, len(layout.names), layout.step)
            odd["stray_quote"] = (stray + lines.first).tolist()
            rows, misfits = _arrow_rows(data, layout)
        begun += lines.first
        is_row = np.ones(len(begun), bool)
        is_row[[number - 1 for number, _ in misfits]] = False
        places = begun[is_row][: len(rows)]
        odd["broken_line"] = [int(begun[number - 1]) for number, text in misfits if text.strip()]
        for number, text in misfits:
            _refuse_header(path, int(begun[number - 1]), cells_of(text, layout.delimiter), layout)
    rows, places, odd["repeated_header"] = _without_headers(path, rows, places, layout)
    columns = zip(layout.names, rows.combine_chunks().columns, strict=True)
    chunks = {name: column.chunk(0) for name, column in columns if column.num_chunks}
    return block_of(chunks, places, odd, layout.numerals)


def _arrow_rows(data: bytearray, layout: Layout) -> tuple[pa.Table, list[tuple[int, str]]]:
    """The rows in some lines, cells that are no numbers as bytes; and those with another number of cells than
    the header, counted from 1, with their text."""
    try:
        return _read(data, layout, layout.text)
    except pa.ArrowInvalid:
        return _read(data, layout, frozenset(layout.names))


def _read(data: bytearray, layout: Layout, text: frozenset[str]) -> tuple[pa.Table, list[tuple[int, str]]]:
    misfits: list[tuple[int, str]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        misfits.append((row.number, row.text or ""))
        return "skip"

    names = list(layout.names)
    types = {name: pa.binary() if name in text else pa.float64() for name in names}
    if not data or data.isspace():
        return pa.table({name: pa.nulls(0, kind) for name, kind in types.items()}), misfits
    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pacsv.ParseOptions(delimiter=layout.delimiter, invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(null_values=[""], strings_can_be_null=True, column_types=types),
    )
    return table, misfits


def _without_headers(
    path: Path, rows: pa.Table, places: Sequence[int] | np.ndarray, layout: Layout
) -> tuple[pa.Table, Sequence[int] | np.ndarray, list[int]]:
    """The rows that are not the header once more, and the lines of those that are."""
    steps = rows.column(layout.step)
    if not len(rows) or steps.type != pa.binary():
        return rows, places, []
    words = as_text(steps.combine_chunks())
    named = pc.fill_null(pc.match_substring_regex(words, "[A-Za-z]"), False)
    repeated = np.zeros(len(rows), bool)
    for i in np.flatnonzero(named.to_numpy(zero_copy_only=False)).tolist():
        cells = ["" if cell is None else _decoded(cell) for cell in rows.slice(i, 1).to_pylist()[0].values()]
        repeated[i] = _refuse_header(path, int(places[i]), cells, layout)
    if not repeated.any():
        return rows, places, []
    at = np.asarray(places)
    return rows.filter(pa.array(~repeated)), at[~repeated], at[repeated].tolist()


def _decoded(cell: bytes | float) -> str:
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _refuse_header(path: Path, line: int, cells: Sequence[str], layout: Layout) -> bool:
    """Whether these cells are the header of the file.

    Raises:
        InputError: they are another one, whose rows must not be taken for those of the first.
    """
    words = [cell.strip() for cell in cells]
    if words == [name.strip() for name in layout.names]:
        return True
    names = len(words) > 1 and all(words) and not any(map(is_number, words))
    if names and len(set(words)) == len(words) and "step" in canonical_names(words).values():
        raise InputError(
            f"{path}, line {line}: another header begins here ({', '.join(words[:6])}"
            f"{', ...' * (len(words) > 6)}), so there are two tables in the file; split it before this line"
        )
    return False
