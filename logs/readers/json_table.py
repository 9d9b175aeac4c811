"""Reader of a table as one JSON document: a list of rows, or columns of equal length.

[{"step": 0, "loss": 3.2}, ...]                          also as the one list of rows inside an object
{"step": [0, 1], "loss": [3.2, 3.1]}
{"step": {"0": 0, "1": 1}, "loss": {"0": 3.2, ...}}      as pandas writes it
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from logs.naming import load_names
from logs.parsing.json_document import load_document
from logs.parsing.json_lines import columns_of, flat_row
from logs.parsing.several_runs import runs_of
from logs.parsing.tables import block_of, table_of
from logs.parsing.text_lines import Notes
from logs.readers import NotALog, Sample
from logs.schema import Run

NAME = "json"
VERSION = "2"
FALLBACK = True


def matches(sample: Sample) -> bool:
    """A JSON document, no JSON lines, in whose head a key counts steps."""
    if sample.binary or sample.text.lstrip()[:1] not in ("{", "["):
        return False
    steps = "|".join(map(re.escape, load_names().axes["step"]))
    return re.search(rf'"({steps})"\s*:', sample.text, re.IGNORECASE) is not None


def read(path: Path) -> list[Run]:
    """The rows as one run, or as several where a key tells them apart; see `several_runs.runs_of`.

    Raises:
        NotALog: JSON, but none of these tables.
        InputError: not a whole JSON document, too large, or no row has a step.
    """
    notes = Notes()
    rows = _rows(load_document(path, notes))
    if rows is None:
        raise NotALog(f"{path}: JSON, but neither a list of rows nor columns of equal length")
    twice: list[int] = []
    flat: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        keys: list[str] = []
        flat.append(flat_row(row, twice=keys))
        twice += [number] * bool(keys)
    block = block_of(columns_of(flat), range(1, len(rows) + 1), {"duplicate_key": twice})
    table = table_of(path, [block], place="row")
    return runs_of(replace(table, quirks=[*table.quirks, *notes.quirks()]))


def _rows(document: Any) -> list[dict[str, Any]] | None:
    if isinstance(document, list):
        whole = bool(document) and all(isinstance(row, dict) for row in document)
        return document if whole else None
    if not isinstance(document, dict):
        return None
    columns = {name: _cells(column) for name, column in document.items()}
    lengths = {len(cells) for cells in columns.values() if cells is not None}
    if None not in columns.values() and len(lengths) == 1:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    inside = [rows for value in document.values() if isinstance(value, list) and (rows := _rows(value))]
    return inside[0] if len(inside) == 1 else None


def _cells(column: Any) -> list[Any] | None:
    """The cells of a column that is a list or maps index to cell; None if it is neither."""
    cells = list(column.values()) if isinstance(column, dict) else column
    plain = isinstance(cells, list) and not any(isinstance(cell, dict | list) for cell in cells)
    return cells if plain else None
