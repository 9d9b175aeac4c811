"""Trackio: a database as it writes it."""

import json
import math
import sqlite3
from pathlib import Path

import pytest

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.readers import NotALog

from .reading import quirks, series


def trackio(path: Path, rows: list[tuple[str, int, object]]) -> Path:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, run_name TEXT NOT"
            " NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
        )
        database.executemany(
            "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('2026-01-01T00:00:00.5', ?, ?, ?)",
            [
                (name, step, metrics if isinstance(metrics, str) else json.dumps(metrics))
                for name, step, metrics in rows
            ],
        )
    database.close()
    return path


def test_trackio(tmp_path: Path) -> None:
    rows = [
        ("a b", 0, {"train/loss": 2.0, "note": "x"}),
        ("a/b", 0, {"train/loss": 5.0}),
        ("a b", 1, {"train/loss": "NaN"}),
    ]
    path = trackio(tmp_path / "project.db", [*rows, ("a b", 2, "{broken")])
    runs = {run.name: run for run in read_logs(path).runs}
    assert sorted(runs) == ["project/a-b", "project/a-b-2"]
    assert series(runs["project/a-b"], "train/loss")[0] == 2.0
    assert math.isnan(series(runs["project/a-b"], "train/loss")[1])
    assert series(runs["project/a-b-2"], "train/loss") == {0: 5.0}
    assert runs["project/a-b"].table["wall_time"].tolist()[0] == 1767225600.5
    assert quirks(runs["project/a-b"])["broken_line"] == 1


def test_a_trackio_database_that_is_damaged_or_empty_or_none(tmp_path: Path) -> None:
    path = trackio(tmp_path / "a.db", [("run", i, {"train/loss": 1.0}) for i in range(3000)])
    data = bytearray(path.read_bytes())
    data[8192:40960] = b"\xff" * 32768
    path.write_bytes(data)
    with pytest.raises(InputError, match="SQLite database"):
        read_logs(path)
    with pytest.raises(NotALog, match="no logged step"):
        read_logs(trackio(tmp_path / "b.db", []))
    other = tmp_path / "c.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE VIEW metrics AS SELECT 1 AS run_name")
    database.close()
    with pytest.raises(InputError, match="without Trackio's table"):
        read_logs(other)
