"""Reader of Trackio's databases: one SQLite file per project, one run per name in it.

The table is `metrics(timestamp, [project_name,] run_name, step, metrics)` of `trackio/sqlite_storage.py` of
gradio-app/trackio; `metrics` is JSON. Levanter writes it through `src/levanter/tracker/trackio.py`.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.json_document import json_number, json_step
from logs.parsing.json_lines import flat_row
from logs.parsing.text_lines import Notes, timestamp
from logs.parsing.text_rows import Rows, run_from
from logs.readers import NotALog, Sample
from logs.readers.levanter import canonical
from logs.schema import Run

NAME = "trackio"
VERSION = "1"

MAGIC = b"SQLite format 3\0"
COLUMNS = {"timestamp", "run_name", "step", "metrics"}
LONGEST_TEXT = 2**24
"""Bytes of a cell; SQLite refuses longer ones."""


def matches(sample: Sample) -> bool:
    """A SQLite database whose beginning describes the table of Trackio."""
    return sample.head.startswith(MAGIC) and b"run_name" in sample.head and b"metrics" in sample.head


def read(path: Path) -> list[Run]:
    """The runs of the project under their names in it.

    Raises:
        InputError: damaged, compressed, or not Trackio's.
        NotALog: no row.
    """
    rows: dict[str, tuple[Rows, Notes]] = {}
    try:
        for at, name, step, logged, metrics in _rows(path):
            collected, notes = rows.setdefault(name, (Rows(), Notes()))
            _read_row(at, step, logged, metrics, collected, notes)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise InputError(f"{path}: cannot be read as a SQLite database: {error}; copy it again") from None
    rows = {name: found for name, found in rows.items() if len(found[0])}
    if not rows:
        raise NotALog(f"{path}: the database holds no logged step")
    runs = []
    for name, (collected, notes) in rows.items():
        zone = ("wall_time: the log states no time zone; taken as UTC",)
        inferred = zone if "wall_time" in collected.cells else ()
        units = {column: "bits/byte" for column in collected.cells if column.endswith("/bpb")}
        runs.append(replace(run_from(path, collected, notes, units=units, inferred=inferred), name=name))
    return runs


def _rows(path: Path) -> Iterator[tuple[int, str, Any, Any, Any]]:
    """The cells of the table in the order in which they were logged, read only and without running anything.

    Raises:
        InputError: not a table of Trackio.
        sqlite3.Error: damaged.
    """
    journal = path.with_name(f"{path.name}-wal")  # rows of a live run may still be only there
    live = journal.exists() and journal.stat().st_size > 0
    address = f"{path.resolve().as_uri()}?mode=ro{'' if live else '&immutable=1'}"
    with closing(sqlite3.connect(address, uri=True)) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
        database.execute("PRAGMA trusted_schema = OFF")
        kind = database.execute("SELECT type FROM sqlite_master WHERE name = 'metrics'").fetchone()
        found = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
        if kind != ("table",) or not found >= COLUMNS:
            raise InputError(f"{path}: a SQLite database, but without Trackio's table `metrics`")
        query = "SELECT rowid, run_name, step, timestamp, metrics FROM metrics ORDER BY rowid"
        for at, name, *cells in database.execute(query):
            yield at, str(name), *cells


def _read_row(at: int, step: Any, logged: Any, metrics: Any, rows: Rows, notes: Notes) -> None:
    place = json_step(step)
    try:
        row = json.loads(metrics) if isinstance(metrics, str | bytes) else None
    except (ValueError, RecursionError):
        row = None
    if place is None or not isinstance(row, dict):
        notes.add("broken_line", at, "rows without a step or without JSON; left out (rows of the table)")
        return
    values: dict[str, float] = {}
    for name, value in flat_row(row).items():
        measured = json_number(value)
        if measured is not None:
            values[canonical(name)] = measured
        elif value is not None:
            notes.add("text_value", at, "text, lists and media; left in the database (rows of the table)")
    if isinstance(logged, str) and (moment := timestamp(logged)) is not None:
        values["wall_time"] = moment
    if values:
        rows.add(at, place, values)
