"""A stored run as a file, or a run of TensorBoard or W&B, for other tools."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from experiments.configuration import InputError, write_whole
from logs.atomic_folder import folder_replaced_whole
from logs.schema import AXES, Run
from logs.store import to_arrow
from logs.tensorboard_events import write_events


def export(run: Run, kind: str, path: Path, raw: bool = False) -> int:
    """Write the lineage of `run` (or all its `raw` rows) to `path`, whole or not at all. Returns the number
    of rows.

    What was not logged is an empty cell in CSV, an absent key in JSON lines and a null in Parquet; a logged
    NaN is `nan`, `NaN` and NaN. `tensorboard` and `wandb` write a folder: event files, one run per segment if
    `raw`; or a W&B run, which goes to the service instead if WANDB_MODE is online.

    Raises:
        InputError: an unknown kind, or `path` cannot be written.
    """
    if kind not in KINDS:
        raise InputError(f"cannot export to {kind!r}; choose one of {', '.join(KINDS)}")
    rows = run.table if raw else run.lineage()
    try:
        if kind in WRITERS:
            if path.is_dir():
                example = path / f"log.{kind}"
                raise InputError(f"{path}: is a folder; give the file to write, e.g. --out {example}")
            with write_whole(path, "wb") as stream:
                WRITERS[kind](to_arrow(rows), stream)
            return len(rows)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(
                f"{path}: {kind} needs a folder that is new or empty; give another one with --out"
            )
        with folder_replaced_whole(path) as beside:
            if kind == "tensorboard":
                _write_tensorboard(rows, beside, raw)
            else:
                _write_wandb(run, rows, beside, raw)
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


def _values(rows: pd.DataFrame) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Step, wall time (0 where unknown) and what was logged, of each row in which something was."""
    columns = {name: rows[name].array._pa_array.to_pylist() for name in rows.columns[len(AXES) :]}
    times = rows["wall_time"].fillna(0.0).tolist()
    for i, step in enumerate(rows["step"].tolist()):
        logged = {name: cells[i] for name, cells in columns.items() if cells[i] is not None}
        if logged:
            yield step, times[i], logged


def _write_tensorboard(rows: pd.DataFrame, folder: Path, raw: bool) -> None:
    """An event file for the lineage, or one in a folder of its own for each segment.

    The name and the opening event hold no time and no machine, so the same run gives the same bytes.
    """
    for segment in rows["segment"].unique() if raw else [None]:
        part = rows if segment is None else rows[rows["segment"] == segment]
        home = folder if segment is None else folder / re.sub(r"[^A-Za-z0-9._-]+", "-", segment)
        home.mkdir(parents=True, exist_ok=True)
        with (home / "events.out.tfevents.0").open("wb") as stream:
            write_events(_values(part), stream)


def _write_wandb(run: Run, rows: pd.DataFrame, folder: Path, raw: bool) -> None:
    """The lineage as a W&B run in `folder`; `wandb sync` or WANDB_MODE=online brings it to the service.

    Raises:
        InputError: all raw rows are wanted, or the service takes no run.
    """
    import wandb

    if raw:
        raise InputError("W&B takes one row per step; leave out --raw, or export to csv, parquet or jsonl")
    facts = run.facts.model_dump(exclude_none=True)
    mode: Literal["online", "offline"] = "online" if os.environ.get("WANDB_MODE") == "online" else "offline"
    quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
    try:
        with wandb.init(
            project=os.environ.get("WANDB_PROJECT", "maquette"),
            name=run.name,
            dir=folder,
            config=facts,
            mode=mode,
            settings=quiet,
        ) as sink:
            for step, _, logged in _values(rows):
                sink.log(logged, step=step)
        wandb.teardown()  # the file is whole only once the client's service has ended
    except (wandb.errors.Error, TimeoutError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"W&B takes no run ({what}); without WANDB_MODE=online it is written here") from None


WRITERS: dict[str, Callable[[pa.Table, IO[bytes]], None]] = {
    "csv": _write_csv,
    "parquet": _write_parquet,
    "jsonl": _write_json_lines,
}
KINDS = (*WRITERS, "tensorboard", "wandb")
