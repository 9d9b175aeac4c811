"""Reader of a table as one JSON document: a list of rows, or columns of equal length.

[{"step": 0, "loss": 3.2}, ...]                          also as the one list of rows inside an object
{"step": [0, 1], "loss": [3.2, 3.1]}
{"step": {"0": 0, "1": 1}, "loss": {"0": 3.2, ...}}      as pandas writes it
"""

import json
import re
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.naming import load_names
from logs.parsing.json_lines import columns_of, flat_row
from logs.parsing.opened import open_bytes
from logs.parsing.tables import block_of, run_of, table_of
from logs.readers import NotALog, Sample
from logs.schema import Run

NAME = "json"
VERSION = "1"
FALLBACK = True

LARGEST = 2**28


def matches(sample: Sample) -> bool:
    """A JSON document, no JSON lines, in whose head a key counts steps."""
    if sample.binary or sample.text.lstrip()[:1] not in ("{", "["):
        return False
    steps = "|".join(map(re.escape, load_names().axes["step"]))
    return re.search(rf'"({steps})"\s*:', sample.text, re.IGNORECASE) is not None


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Raises:
        NotALog: JSON, but none of these tables.
        InputError: not a whole JSON document, too large, or no row has a step.
    """
    rows = _rows(_document(path))
    if rows is None:
        raise NotALog(f"{path}: JSON, but neither a list of rows nor columns of equal length")
    block = block_of(columns_of(rows), range(1, len(rows) + 1))
    return [run_of(*table_of(path, [block], place="row"))]


def _document(path: Path) -> Any:
    with open_bytes(path) as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InputError(f"{path}: a JSON document of more than {LARGEST:,} bytes; write it as JSON lines")
    try:
        return json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a whole JSON document: {error}") from None


def _rows(document: Any) -> list[dict[str, Any]] | None:
    if isinstance(document, list):
        whole = bool(document) and all(isinstance(row, dict) for row in document)
        return [flat_row(row) for row in document] if whole else None
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
