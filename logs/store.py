"""The canonical store: one folder per run, `log.parquet` (the table) and `run.json` (all else).

The same run gives the same bytes, so a store can be compared and cached by content.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.configuration import Config, InputError, parse, write_json
from logs.schema import Quirk, Run, RunFacts, Segment, Source

ROOT = Path("logs/runs")
SCHEMA_VERSION = 1
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class StoredRun(Config):
    """What `run.json` holds: a run without its table."""

    schema_version: int
    name: str
    facts: RunFacts
    units: dict[str, str]
    segments: tuple[Segment, ...]
    quirks: tuple[Quirk, ...]
    sources: tuple[Source, ...]
    inferred: tuple[str, ...]


def check_name(name: str) -> str:
    """`name` if it can name a run: parts of letters, digits, `.`, `_`, `-`, joined by `/`.

    Raises:
        InputError: it cannot.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name a run; use letters, digits, `.`, `_`, `-`, parts joined by `/`"
        )
    return name


def write_run(run: Run, root: Path = ROOT) -> Path:
    """Store `run` as `root/<name>`, replacing what had that name, whole or not at all. Returns its folder.

    Raises:
        InputError: the name cannot name a run, lies inside another run or holds other runs, or the folder
            cannot be written.
    """
    return write_runs([run], check_name(run.name), root)


def write_runs(runs: Sequence[Run], name: str, root: Path = ROOT) -> Path:
    """Store `runs`, all named `name` or `name/...`, as the only ones there. Returns the folder `root/name`.

    Raises:
        InputError: a name cannot name a run, stands twice, or lies inside another run; one run would take
            the place of a folder of other runs; or the folder cannot be written.
    """
    names = [check_name(run.name) for run in runs]
    for run_name in names:
        if names.count(run_name) > 1:
            raise InputError(f"two runs would be stored as {run_name}; ingest them one by one with --as NAME")
        parents = [str(parent) for parent in Path(run_name).parents][:-1]
        for parent in parents:
            if parent in names:
                raise InputError(f"{run_name} would lie inside the run {parent}; choose another name")
    try:
        for above in list(Path(name).parents)[:-1]:
            if (root / above / "run.json").is_file():
                raise InputError(f"{name} would lie inside the run {above}; choose another name with --as")
        others = [other for other in list_runs(root) if other.startswith(f"{name}/")]
        if names == [name] and others:
            raise InputError(
                f"{name} holds other runs ({', '.join(others[:3])}{', ...' * (len(others) > 3)}), which one run "
                f"would replace; choose another name with --as, such as {name}/NAME, or remove {root / name}"
            )
        with folder_replaced_whole(root / name) as beside:
            for run in runs:
                _write(run, beside / Path(run.name).relative_to(name))
    except OSError as error:
        raise InputError(f"{root / name}: cannot be written: {error.strerror or error}") from None
    return root / name


@contextmanager
def folder_replaced_whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `folder` at the end and vanishes on any error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    old = beside.with_suffix(".old")
    try:
        yield beside
        beside.chmod(0o755)
        if folder.exists():
            os.rename(folder, old)
        os.rename(beside, folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _write(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_table(run.table, folder / "log.parquet")
    stored = StoredRun(
        schema_version=SCHEMA_VERSION,
        name=run.name,
        facts=run.facts,
        units=run.units,
        segments=run.segments,
        quirks=run.quirks,
        sources=run.sources,
        inferred=run.inferred,
    )
    write_json(folder / "run.json", stored.model_dump(mode="json", exclude_none=True))


ROW_GROUP = 2**19


def _write_table(table: pd.DataFrame, path: Path) -> None:
    """Written group by group, so that no second copy of a long table stands in memory."""
    schema = to_arrow(table.iloc[:0]).schema
    names = ["run", "segment"]
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=names) as writer:
        for start in range(0, max(len(table), 1), ROW_GROUP):
            writer.write_table(to_arrow(table.iloc[start : start + ROW_GROUP]))


def to_arrow(table: pd.DataFrame) -> pa.Table:
    """A run's table as an Arrow table: text, 64-bit integers, doubles; null is *not logged*."""
    return pa.table({str(name): _column(table[name]) for name in table.columns})


def _column(column: pd.Series) -> pa.Array:
    kind = {"step": pa.int64(), "tokens": pa.int64(), "samples": pa.int64(), "wall_time": pa.float64()}
    if column.name in ("run", "segment"):
        text: Any = column.astype("str").array
        return text._pa_array.cast(pa.string())
    if column.name in kind:
        return column.array._pa_array if _is_arrow(column) else pa.array(column, kind[column.name])
    return column.array._pa_array


def _is_arrow(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.ArrowDtype)


def read_run(name_or_path: str | Path, root: Path = ROOT) -> Run:
    """The stored run of that name, or in that folder.

    Raises:
        InputError: there is none (similar names are listed), or its files are not what `write_run` writes.
    """
    folder = Path(root) / name_or_path
    if not (folder / "run.json").is_file():
        folder = Path(name_or_path)
    if not (folder / "run.json").is_file():
        raise InputError(f"no run {str(name_or_path)!r} in {root}; {_what_there_is(str(name_or_path), root)}")
    try:
        data = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        table = pq.read_table(folder / "log.parquet")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, pa.ArrowException) as error:
        raise InputError(f"{folder}: damaged ({error}); ingest the run again") from None
    stored = parse(StoredRun, data, str(folder / "run.json"))
    if stored.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{folder}: written in version {stored.schema_version} of the format; ingest the run again"
        )
    try:
        return Run(
            name=stored.name,
            table=_from_arrow(table),
            units=stored.units,
            facts=stored.facts,
            segments=stored.segments,
            quirks=stored.quirks,
            sources=stored.sources,
            inferred=stored.inferred,
        )
    except ValueError as error:
        raise InputError(f"{folder}: damaged ({error}); ingest the run again") from None


def _from_arrow(table: pa.Table) -> pd.DataFrame:
    columns: dict[str, pd.Series] = {}
    types: dict[str, Any] = {"run": "str", "segment": "str", "step": "int64"}
    for name in table.column_names:
        column = pd.Series(pd.arrays.ArrowExtensionArray(table.column(name)))
        columns[name] = column.astype(types[name]) if name in types else column
    return pd.DataFrame(columns)


def list_runs(root: Path = ROOT) -> list[str]:
    """Names of the stored runs, sorted."""
    folders = [path.parent.relative_to(root) for path in Path(root).rglob("run.json")]
    return sorted(str(folder) for folder in folders if not any(part.startswith(".") for part in folder.parts))


def _what_there_is(name: str, root: Path) -> str:
    names = list_runs(root)
    close = get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {', '.join(close)}?"
    here = f"stored are {', '.join(names)}; " if names else ""
    return f"{here}store one with `maquette logs ingest PATH`"
