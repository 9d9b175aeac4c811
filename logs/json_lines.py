"""Rows of metrics as JSON lines: one object per line, what is absent was not logged."""

import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.configuration import InputError
from logs.readers.opened import open_bytes
from logs.schema import AXES, Quirk, make_table, metric_column


def read_json_lines(
    path: Path, names: Callable[[Sequence[str]], dict[str, str]] | None = None
) -> tuple[pd.DataFrame, tuple[Quirk, ...]]:
    """The rows of `path` in the order in which they were written, as a table of `logs.schema`.

    Args:
        names: gives the canonical name of each key of the file, such as `logs.naming.canonical_names`;
            without it keys are taken as they are.

    Returns:
        The table, and the quirks: a torn last line, broken lines, rows without a step, text in place of
        numbers.

    Raises:
        InputError: no row with a step.
    """
    objects: list[tuple[int, dict[str, Any]]] = []
    found: dict[str, list[int]] = defaultdict(list)
    last = 0
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors="replace") as stream:
        for last, line in enumerate(stream, start=1):
            row = _object(line)
            if row is not None:
                objects.append((last, row))
            elif line.strip():
                found["broken_line"].append(last)
    keys = list(dict.fromkeys(key for _, row in objects for key in row))
    canonical = names(keys) if names else {key: key for key in keys}
    rows: list[dict[str, Any]] = []
    for number, row in objects:
        renamed = {canonical[key]: value for key, value in row.items()}
        if _is_step(renamed.get("step")):
            rows.append(renamed)
        else:
            found["no_step"].append(number)
    if found["broken_line"][-1:] == [last]:
        found["torn_tail"].append(found["broken_line"].pop())
    if not rows:
        raise InputError(f"{path}: no line holds a JSON object with a whole-number `step`; nothing to read")
    table, text = _table(rows)
    quirks = [
        Quirk(kind=kind, count=len(at), where=_lines(at), action=ACTIONS[kind])
        for kind, at in found.items()
        if at
    ]
    quirks += [
        Quirk(kind="text_value", count=count, where=f"metric {name}", action="left out of the table")
        for name, count in sorted(text.items())
    ]
    return table, tuple(quirks)


ACTIONS = {
    "broken_line": "not JSON; the line was left out",
    "torn_tail": "the last line was cut off while being written; left out",
    "no_step": "the line has no whole-number step from 0 up; left out",
}


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # an integer of thousands of digits is a plain ValueError
        return None
    return row if isinstance(row, dict) else None


def _is_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 2**62 and value == int(value)


def _lines(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:5])
    return f"line {shown}" if len(numbers) <= 5 else f"lines {shown} and {len(numbers) - 5} more"


def _table(rows: list[dict[str, Any]]) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows as a table, and how many values of each metric were no numbers."""
    metrics = list(dict.fromkeys(key for row in rows for key in row if key not in AXES))
    columns: dict[str, pd.Series] = {"step": pd.Series([int(row["step"]) for row in rows], dtype="int64")}
    for axis in ("tokens", "samples"):
        values: list[Any] = [row.get(axis) for row in rows]
        columns[axis] = pd.Series([int(v) if _is_step(v) else None for v in values], dtype="Int64")
    columns["wall_time"] = pd.Series([_number(row.get("wall_time")) for row in rows], dtype="Float64")
    text: dict[str, int] = {}
    for metric in metrics:
        values = [row.get(metric) for row in rows]
        numbers = [_number(value) for value in values]
        lost = sum(v is not None and n is None for v, n in zip(values, numbers, strict=True))
        if lost:
            text[metric] = lost
        if any(number is not None for number in numbers):
            columns[metric] = metric_column(numbers)
    return make_table(pd.DataFrame(columns), run=""), text


def _number(value: Any) -> float | None:
    """A JSON value as a number; some loggers write NaN as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
