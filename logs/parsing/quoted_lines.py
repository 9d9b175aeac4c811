"""Rows of CSV that hold quotation marks: a cell in quotes may go on over several lines, and a mark that nothing
closes would swallow all rows up to the next one."""

import csv
from collections.abc import Iterator

import numpy as np

MOST_LINES = 100
"""More lines than any text in a cell of a log has."""

QUOTE = b'"'


def logical_rows(
    data: bytes | bytearray, delimiter: str, width: int, step: int = 0
) -> tuple[bytearray, np.ndarray, np.ndarray]:
    """Lines of CSV put into rows of `width` cells, without the lines in which a cell is opened and never closed.

    A cell is taken to go on over lines only if it closes within `MOST_LINES`, with nothing between the closing
    mark and the next cell, if the row then has `width` cells, and if none of the lines in it is a row itself.

    Args:
        step: place of the cell that counts steps, by whose number a row is known.

    Returns:
        What is left, the index of the line in which each row of it begins, and those of the lines left out.
        Empty lines are no rows.
    """
    lines = bytes(data).splitlines(keepends=True)
    kept = bytearray()
    starts: list[int] = []
    stray: list[int] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if QUOTE in line and is_open(line, delimiter):
            end = _end_of_row(lines, at, delimiter, width, step)
            if end is None:
                stray.append(at)
                at += 1
                continue
        else:
            end = at + 1
        if line.strip(b"\r\n"):
            starts.append(at)
        kept += b"".join(lines[at:end])
        at = end
    return kept, np.array(starts, int), np.array(stray, int)


def _end_of_row(lines: list[bytes], at: int, delimiter: str, width: int, step: int) -> int | None:
    """The line after the row that begins in line `at` and has an open cell at its end, or None if none ends."""
    row = lines[at]
    for end in range(at + 1, min(len(lines), at + MOST_LINES)):
        if _is_row(lines[end], delimiter, width, step):
            return None
        row += lines[end]
        if QUOTE in lines[end] and not is_open(row, delimiter):
            cells = cells_of(row.decode(errors="replace"), delimiter)
            return end + 1 if len(cells) == width and _is_well_formed(row, delimiter) else None
    return None


def is_open(line: bytes, delimiter: str) -> bool:
    """Whether the last cell begins with a quotation mark that nothing closes."""
    return None in _closings(line, delimiter)


def _is_well_formed(row: bytes, delimiter: str) -> bool:
    """Whether each quoted cell ends at its closing mark, and no other cell holds one."""
    after = (delimiter.encode(), b"\r", b"\n", b"")
    closings = list(_closings(row, delimiter))
    whole = all(end is not None and row[end : end + 1] in after for end in closings)
    return whole and row.count(QUOTE) % 2 == 0


def _closings(line: bytes, delimiter: str) -> Iterator[int | None]:
    """Where each cell that begins with a quotation mark is closed: the place behind the mark, or None."""
    between = delimiter.encode()
    at = 0
    while True:
        if line[at : at + 1] == QUOTE:
            at = line.find(QUOTE, at + 1) + 1
            while at and line[at : at + 1] == QUOTE:  # two in a row are one of the text
                at = line.find(QUOTE, at + 1) + 1
            yield at or None
            if not at:
                return
        at = line.find(between, at) + 1
        if not at:
            return


def _is_row(line: bytes, delimiter: str, width: int, step: int) -> bool:
    cells = cells_of(line.decode(errors="replace"), delimiter)
    if len(cells) != width or not is_number(cells[step]):
        return False
    return step == 0 or _is_well_formed(line, delimiter)


def cells_of(line: str, delimiter: str) -> list[str]:
    """The cells of one row; none if a cell is longer than any of a log."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def is_number(cell: str) -> bool:
    """Whether a cell is a plain number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
