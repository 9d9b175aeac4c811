"""A stored run as a file for other tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from experiments.configuration import InputError, write_whole
from logs.schema import Run
from logs.store import to_arrow


def export(run: Run, kind: str, path: Path, raw: bool = False) -> int:
    """Write the lineage of `run` (or all its `raw` rows) to `path`, whole or not at all. Returns the number
    of rows.

    What was not logged is an empty cell in CSV, an absent key in JSON lines and a null in Parquet; a logged
    NaN is `nan`, `NaN` and NaN.

    Raises:
        InputError: an unknown kind, or `path` cannot be written.
    """
    if kind not in WRITERS:
        raise InputError(f"cannot export to {kind!r}; choose one of {', '.join(WRITERS)}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the file to write, e.g. --out {path / f'log.{kind}'}")
    rows = run.table if raw else run.lineage()
    try:
        with write_whole(path, "wb") as stream:
            WRITERS[kind](to_arrow(rows), stream)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    return len(rows)


def _write_csv(table: pa.Table, stream: IO[bytes]) -> None:
    pacsv.write_csv(table, stream, pacsv.WriteOptions(quoting_style="needed"))


def _write_parquet(table: pa.Table, stream: IO[bytes]) -> None:
    pq.write_table(table, stream, compression="zstd")


def _write_json_lines(table: pa.Table, stream: IO[bytes]) -> None:
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            logged = {key: value for key, value in row.items() if value is not None}
            stream.write(json.dumps(logged).encode() + b"\n")


WRITERS: dict[str, Callable[[pa.Table, IO[bytes]], None]] = {
    "csv": _write_csv,
    "parquet": _write_parquet,
    "jsonl": _write_json_lines,
}
