"""Rows of metrics as JSON lines: one object per line, what is absent was not logged.

A file of any length is read in blocks of lines, which Arrow parses. A block in which something is odd (a line
that is no JSON, one key with numbers and text) is read again line by line.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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


AS_CSV = bytes.maketrans(b":}", b",,")


def _uniform_block(lines: bytearray, count: int) -> dict[str, pa.Array] | None:
    """The columns of a block all lines of which have the keys of the first, each with a number or null.

    With quotes gone and `:` and `}` made commas, such a block is a CSV table of keys and numbers in turn, which
    Arrow reads in half the time of JSON. None if the block is anything else: then a cell, a key or a count of
    `"{:}` does not fit.
    """
    first = json_object(lines[: lines.find(b"\n") + 1].decode(errors="replace"))
    if not first or b"\\" in lines:
        return None
    keys = list(first)
    characters = np.frombuffer(lines, np.uint8)
    marks = [int(np.count_nonzero(characters == mark)) for mark in b'"{:}']
    if marks != [2 * len(keys) * count, count, len(keys) * count, count]:
        return None
    names = [str(i) for i in range(2 * len(keys) + 1)]
    pair = (pa.dictionary(pa.int32(), pa.string()), pa.float64())
    kinds = {name: pair[i % 2] for i, name in enumerate(names[:-1])} | {names[-1]: pa.null()}
    data = lines.translate(AS_CSV, b'"')
    try:
        table = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
            parse_options=pacsv.ParseOptions(quote_char=False),
            convert_options=pacsv.ConvertOptions(column_types=kinds, null_values=["", "null", " null"]),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != count:
        return None
    columns: dict[str, pa.Array] = {}
    for i, key in enumerate(keys):
        of_key, numbers = table.column(2 * i).combine_chunks(), table.column(2 * i + 1).combine_chunks()
        if {word.removeprefix("{" if i == 0 else "").strip() for word in _words(of_key)} != {key}:
            return None
        columns[key] = numbers
    return columns


def _words(keys: pa.Array) -> list[str]:
    return [] if keys.null_count else keys.dictionary.to_pylist()


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
        return repr(float(value)) if isinstance(value, int | float) else str(value)
    except (OverflowError, ValueError):
        return "(too large)"
