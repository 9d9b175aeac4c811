"""Many lines of the form `<head> | name: number | name: number |` read at once, column by column."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

FEW = 8
"""Fewer lines alike than this are not worth reading at once."""

LONGEST_FIELD = 2**20
"""Bytes; no line is longer."""

MOST_FORMS = 16
"""Sets of names that are told apart in one block; lines of further ones are left to whoever reads singly."""


@dataclass(frozen=True)
class Alike:
    """Lines that hold the same names in the same order."""

    index: NDArray[np.int64]
    """Which lines of the block they are."""

    heads: pa.StringArray
    """What stands before the first `|` of each."""

    columns: dict[str, NDArray[np.float64]]
    """Name -> the numbers, one per line; runs of blanks in a name are one blank."""


def split_lines(text: str) -> pa.StringArray:
    """The lines of `text` with their ends, without copying each."""
    data = text.encode() + b"\n"
    ends = np.flatnonzero(np.frombuffer(data, "uint8") == ord("\n")) + 1
    offsets = np.append(0, ends).astype("int32")
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(data))


def alike_lines(lines: pa.StringArray) -> Iterator[Alike]:
    """Groups of lines that end with `|` and whose fields after the first are `name: number`."""
    parts = pc.split_pattern(lines, "|")
    count = np.diff(parts.offsets.to_numpy())
    for fields in np.unique(count[count > 2]):
        index = np.flatnonzero(count == fields)
        if len(index) < FEW:
            continue
        chosen = parts.take(pa.array(index)) if len(index) < len(parts) else parts
        columns = [pc.list_element(chosen, j) for j in range(fields)]
        left = pc.equal(pc.ascii_trim_whitespace(columns.pop()), "").to_numpy(zero_copy_only=False)
        for _ in range(MOST_FORMS):
            index, columns = index[left], _where(left, columns)
            if len(index) < FEW:
                break
            same, names = _like_the_first(columns)
            head, *alike = _where(same, columns)
            values = _numbers(alike, names)
            if values is not None:
                yield Alike(index[same], head, values)
            left = ~same


def _where(chosen: NDArray[np.bool_], columns: list[pa.StringArray]) -> list[pa.StringArray]:
    return columns if chosen.all() else [column.filter(pa.array(chosen)) for column in columns]


def _like_the_first(columns: list[pa.StringArray]) -> tuple[NDArray[np.bool_], list[str]]:
    """Which lines have the names of the first one, and these names up to the colon."""
    same = np.ones(len(columns[0]), bool)
    names: list[str] = []
    for column in columns[1:]:
        name, colon, _ = column[0].as_py().rpartition(":")
        names.append(name + colon)
        same &= pc.starts_with(column, name + colon).to_numpy(zero_copy_only=False)
    return same, names


def _numbers(columns: list[pa.StringArray], names: list[str]) -> dict[str, NDArray[np.float64]] | None:
    """The numbers after the names, or None if a field is no number, has no name, or a name stands twice."""
    values: dict[str, NDArray[np.float64]] = {}
    for column, name in zip(columns, names, strict=True):
        key = " ".join(name.removesuffix(":").split())
        if not key or key in values:
            return None
        cut = pc.binary_slice(column.view(pa.binary()), len(name.encode()), LONGEST_FIELD)
        try:
            values[key] = pc.cast(pc.ascii_trim_whitespace(cut.cast(pa.string())), pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            return None
    return values
