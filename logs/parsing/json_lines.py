"""Rows of metrics as JSON lines: one object per line, what is absent was not logged.

A file of any length is read in blocks of lines, which Arrow parses. A block in which something is odd (a line
that is no JSON, one key with numbers and text) is read again line by line.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from logs.naming import canonical_names
from logs.parsing.cells import flat_columns
from logs.parsing.opened import Lines, in_order, line_blocks, open_bytes
from logs.parsing.tables import Block, Table, block_of, table_of

BOM = b"\xef\xbb\xbf"


def read_json_lines(path: Path, names: Callable[[Sequence[str]], dict[str, str]] = canonical_names) -> Table:
    """The rows of `path` in the order in which they were written, as a table of `logs.schema`.

    An object inside a row gives one metric for each of its keys, named `outer/inner`.

    Args:
        names: gives the canonical name of each key of the file.

    Raises:
        NotALog: no key counts steps.
        InputError: no row with a step.
    """
    return table_of(path, _blocks(path), names)


def _blocks(path: Path) -> Iterator[Block]:
    """The rows of the file; the last block has none and tells of lines that are neither rows nor broken."""
    too_long: list[int] = []
    torn: list[int] = []
    with open_bytes(path) as stream:
        yield from in_order(_parse, _without_torn_tail(line_blocks(stream, too_long), torn))
    yield Block({}, (), odd={"long_line": too_long, "torn_tail": torn})


def _without_torn_tail(blocks: Iterator[Lines], torn: list[int]) -> Iterator[Lines]:
    """The blocks without a last line that has no end and is no whole object."""
    for lines in blocks:
        last = lines.data[-1:] != b"\n" and lines.data.strip()  # a line in which the file ends
        if last and json_object(lines.data.decode("utf-8-sig", errors="replace")) is None:
            torn.append(lines.first)
        else:
            yield lines


def _parse(lines: Lines) -> Block:
    data = lines.data.removeprefix(BOM) if lines.first == 1 else lines.data
    columns = _uniform_block(data, lines.count) or _whole_block(data, lines.count)
    if columns is None:
        return _line_by_line(lines.first, data)
    return block_of(columns, range(lines.first, lines.first + lines.count))


def _uniform_block(lines: bytearray, count: int) -> dict[str, pa.Array] | None:
    """The columns of a block all lines of which have the keys of the first, each with a number or null.

    Between commas such a block is a CSV table of which each cell begins as that of the first line does, up to
    the number; Arrow reads that in half the time of JSON. None if the block is anything else: then cells are
    too few or too many, begin otherwise, or hold no number.
    """
    line = lines[: lines.find(b"\n") + 1]
    first = json_object(line.decode(errors="replace"))
    openings = [match[0] for cell in line.split(b",") if (match := UP_TO_NUMBER.match(cell))]
    if not first or b"\\" in lines or len(openings) != len(first) or line.count(b",") != len(first) - 1:
        return None
    names = [str(i) for i in range(len(first))]
    try:
        table = pacsv.read_csv(
            pa.BufferReader(lines),
            read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(lines) + 1),
            parse_options=pacsv.ParseOptions(quote_char=False),
            convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary())),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != count:
        return None
    columns: dict[str, pa.Array] = {}
    for i, (key, opening) in enumerate(zip(first, openings, strict=True)):
        cells = table.column(i).combine_chunks()
        last = i == len(first) - 1
        whole = pc.and_(pc.starts_with(cells, opening), pc.ends_with(cells, b"}" if last else b""))
        if not pc.all(whole).as_py() or pc.max(pc.binary_length(cells)).as_py() > LONGEST_NUMBER:
            return None
        numbers = _numbers(pc.binary_slice(cells, len(opening), -1 if last else LONGEST_NUMBER))
        if numbers is None:
            return None
        columns[key] = numbers
    return columns


LONGEST_NUMBER = 1000
"""Bytes of a cell; a block with a longer one is read as JSON."""

UP_TO_NUMBER = re.compile(rb'\s*\{?\s*"[^"]*"\s*:\s*')


def _numbers(words: pa.Array) -> pa.Array | None:
    """Numbers and `null` as doubles; None if a word is neither."""
    try:
        return words.cast(pa.string()).cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    try:
        plain = pc.if_else(pc.equal(words, b"null"), None, words)
        return plain.cast(pa.string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _whole_block(lines: bytearray, count: int) -> dict[str, pa.Array] | None:
    """The columns of a block each line of which is one row; None if it is anything else."""
    if not lines.isascii():  # Arrow takes bytes for text unseen
        return None
    try:
        table = pajson.read_json(
            pa.BufferReader(lines),
            read_options=pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != count or not table.num_columns:
        return None
    flat = [
        (key, _text_again(cells))
        for name, column in zip(table.column_names, table.combine_chunks().columns, strict=True)
        for key, cells in flat_columns(name, column.chunk(0))
    ]
    columns = dict(flat)
    return columns if len(columns) == len(flat) else None


def _text_again(column: pa.Array) -> pa.Array:
    """A time that Arrow saw in a text is a text; JSON has no times."""
    return column.cast(pa.string()) if pa.types.is_timestamp(column.type) else column


def _line_by_line(first: int, lines: bytearray) -> Block:
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    broken: list[int] = []
    twice: list[int] = []
    for number, line in enumerate(lines.decode(errors="replace").split("\n"), start=first):
        keys: list[str] = []
        row = json_object(line, keys)
        if row is not None:
            rows.append(flat_row(row, twice=keys))
            places.append(number)
            twice += [number] * bool(keys)
        elif line.strip():
            broken.append(number)
    odd = {"broken_line": broken, "duplicate_key": twice}
    return block_of(columns_of(rows), np.array(places, int), odd)


def json_object(line: str, twice: list[str] | None = None) -> dict[str, Any] | None:
    """The JSON object in `line`, or None if there is none; `twice` takes the keys that stand twice in one."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if twice is not None and len(result) < len(items):
            twice.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return result

    try:
        row = json.loads(line, object_pairs_hook=pairs)
    except (ValueError, RecursionError):  # an integer of thousands of digits is a plain ValueError
        return None
    return row if isinstance(row, dict) else None


def flat_row(row: dict[str, Any], outer: str = "", twice: list[str] | None = None) -> dict[str, Any]:
    """`row` with the keys of the objects in it as `outer/inner`; `twice` takes those that are one then."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{outer}{key}"
        inner = flat_row(value, f"{name}/", twice) if isinstance(value, dict) else {name: value}
        if twice is not None:
            twice += inner.keys() & flat.keys()
        flat.update(inner)
    return flat


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, pa.Array]:
    """Rows of JSON values as columns: numbers as they are, any other value as text."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> pa.Array:
    """Doubles where all values are numbers, else text; some loggers write NaN as text."""
    if all(value is None or type(value) in (int, float) for value in values):
        try:
            return pa.array([None if v is None else float(v) for v in values], pa.float64())
        except OverflowError:  # an integer too large for a double is no number of a log
            pass
    return pa.array([None if v is None else _word(v) for v in values], pa.string())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return json.dumps(value)
    try:
        word = repr(float(value)) if isinstance(value, int | float) else str(value)
    except (OverflowError, ValueError):
        return "(too large)"
    return word.encode("utf-8", "replace").decode()  # without lone surrogates, which no file can hold
