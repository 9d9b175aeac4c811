"""The canonical store: one folder per run, `log.parquet` (the table) and `run.json` (all else).

The same run gives the same bytes, so a store can be compared and cached by content.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.configuration import Config, InputError, parse, write_json
from logs.atomic_folder import clear_leftovers, exclusive, folder_beside, put_in_place, restore
from logs.schema import Quirk, Run, RunFacts, Segment, Source

ROOT = Path("logs/runs")
SCHEMA_VERSION = 1
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")

LONGEST_PART = 240
"""Letters in a part of a name: file systems take 255, and while a run is written its folder's name has 15 more."""


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
    if (longest := max(map(len, name.split("/")))) > LONGEST_PART:
        raise InputError(
            f"a run cannot be named {name[:20]}...: a part of {longest} letters, of at most {LONGEST_PART}; "
            "choose a shorter name with --as NAME"
        )
    return name


def write_run(run: Run, root: Path = ROOT) -> Path:
    """Store `run` as `root/<name>`, replacing what had that name, whole or not at all. Returns its folder.

    Raises:
        InputError: see `write_runs`.
    """
    write_runs([run], root)
    return root / run.name


def write_runs(runs: Sequence[Run], root: Path = ROOT, below: str | None = None) -> None:
    """Store `runs`, each whole, and none of them if one cannot be stored.

    Args:
        runs: what to store; it replaces what had the same names.
        root: the store.
        below: a name that all runs have, or lie below; they become the only ones there.

    Raises:
        InputError: a name cannot name a run, stands twice, or lies inside another run; one run would take
            the place of a folder of other runs; or the folder cannot be written.
    """
    _check_names([check_name(run.name) for run in runs])
    groups = {run.name: [run] for run in runs} if below is None else {check_name(below): runs}
    try:
        _check_places(groups, root)
        root.mkdir(parents=True, exist_ok=True)
        with exclusive(root):
            clear_leftovers(root)
        with ExitStack() as stack:
            beside = {
                name: stack.enter_context(folder_beside(root, name.rpartition("/")[2])) for name in groups
            }
            for name, group in groups.items():
                for run in group:
                    _write(run, beside[name] / Path(run.name).relative_to(name))
            with exclusive(root):
                _check_places(groups, root)  # again: another process may have stored a run meanwhile
                for name, folder in beside.items():
                    put_in_place(folder, root / name)
    except OSError as error:
        where = error.filename or root / next(iter(groups))
        raise InputError(f"{where}: cannot be written: {error.strerror or error}") from None


def _check_names(names: Sequence[str]) -> None:
    times = Counter(names)
    for name in names:
        if times[name] > 1:
            raise InputError(f"two runs would be stored as {name}; ingest them one by one with --as NAME")
        for above in _above(name):
            if above in times:
                raise InputError(
                    f"{name} would lie inside the run {above}; ingest one of the two by itself with --as NAME"
                )


def _check_places(groups: Mapping[str, Sequence[Run]], root: Path) -> None:
    stored = list_runs(root)
    for name, runs in groups.items():
        for above in _above(name):
            if above in stored:
                raise InputError(f"{name} would lie inside the run {above}; choose another name with --as")
        others = [other for other in stored if other.startswith(f"{name}/")]
        if others and [run.name for run in runs] == [name]:
            raise InputError(
                f"{name} holds other runs ({', '.join(others[:3])}{', ...' * (len(others) > 3)}), which one run "
                f"would replace; choose another name with --as, such as {name}/NAME, or remove {root / name}"
            )


def _above(name: str) -> list[str]:
    """The names of which `name` is a part: `a/b/c` -> `a/b`, `a`."""
    return [str(parent) for parent in Path(name).parents][:-1]


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


NUMBERED = {"step": pa.int64(), "tokens": pa.int64(), "samples": pa.int64(), "wall_time": pa.float64()}
"""The axes that are numbers, and as what they are stored."""


def _column(column: pd.Series) -> pa.Array:
    if column.name in ("run", "segment"):
        text: Any = column.astype("str").array
        return text._pa_array.cast(pa.string())
    if column.name in NUMBERED:
        return column.array._pa_array if _is_arrow(column) else pa.array(column, NUMBERED[str(column.name)])
    return column.array._pa_array


def _is_arrow(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.ArrowDtype)


def read_run(name_or_path: str | Path, root: Path = ROOT) -> Run:
    """The stored run of that name, or in that folder.

    Raises:
        InputError: there is none (similar names are listed), or its files are not what `write_run` writes.
    """
    folder = _folder_of(name_or_path, Path(root))
    try:
        with _opened_together(folder, ("run.json", "log.parquet")) as (about, log):
            data = json.loads(about.read().decode())
            table = _from_arrow(pq.read_table(log))
    except (OSError, ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{folder}: damaged ({_brief(error)}); ingest the run again") from None
    stored = parse(StoredRun, data, str(folder / "run.json"))
    if stored.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{folder}: written in version {stored.schema_version} of the format; ingest the run again"
        )
    try:
        return Run(
            name=stored.name,
            table=table,
            units=stored.units,
            facts=stored.facts,
            segments=stored.segments,
            quirks=stored.quirks,
            sources=stored.sources,
            inferred=stored.inferred,
        )
    except ValueError as error:
        raise InputError(f"{folder}: damaged ({error}); ingest the run again") from None


def _folder_of(name_or_path: str | Path, root: Path) -> Path:
    """The folder of a stored run.

    Raises:
        InputError: there is none, or it may not be read.
    """
    try:
        for folder in (root / name_or_path, Path(name_or_path)):
            if (folder / "run.json").is_file():
                return folder
        if (root / name_or_path).parent.is_dir():
            with exclusive(root):
                restore(root / name_or_path)
            if (root / name_or_path / "run.json").is_file():
                return root / name_or_path
    except (OSError, ValueError) as error:
        raise InputError(f"{name_or_path}: cannot be read: {_brief(error)}") from None
    raise InputError(f"no run {str(name_or_path)!r} in {root}; {_what_there_is(str(name_or_path), root)}")


@contextmanager
def _opened_together(folder: Path, names: Sequence[str]) -> Iterator[list[IO[bytes]]]:
    """Files of one folder, all of the old one or all of the new one where it is being replaced meanwhile.

    Raises:
        OSError: one cannot be opened.
    """
    while True:
        home = os.open(folder, os.O_RDONLY)
        with ExitStack() as stack:
            stack.callback(os.close, home)
            files: list[IO[bytes]] = []
            try:
                for name in names:
                    file = os.open(name, os.O_RDONLY, dir_fd=home)
                    files.append(stack.enter_context(os.fdopen(file, "rb")))
            except FileNotFoundError:
                if os.path.samestat(os.stat(folder), os.fstat(home)):
                    raise
                continue  # it was replaced meanwhile, and the old one removed
            yield files
            return


def _brief(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def _from_arrow(table: pa.Table) -> pd.DataFrame:
    columns: dict[str, pd.Series] = {}
    types: dict[str, Any] = {"run": "str", "segment": "str", "step": "int64"}
    for name in table.column_names:
        kind = table.schema.field(name).type
        if kind != NUMBERED.get(name, kind):
            raise ValueError(f"{name} is {kind}, not {NUMBERED[name]}")
        column = pd.Series(pd.arrays.ArrowExtensionArray(table.column(name)))
        columns[name] = column.astype(types[name]) if name in types else column
    return pd.DataFrame(columns)


def list_runs(root: Path = ROOT, unreadable: Callable[[OSError], None] | None = None) -> list[str]:
    """Names of the stored runs, sorted.

    Args:
        root: the store.
        unreadable: told of each folder that cannot be read; without it such a one is passed over.
    """

    def told(error: OSError) -> None:
        if unreadable is not None and not isinstance(error, FileNotFoundError):
            unreadable(error)

    names = []
    for folder, below, files in os.walk(root, onerror=told):
        below[:] = [name for name in below if not name.startswith(".")]
        if "run.json" in files:
            names.append(Path(folder).relative_to(root).as_posix())
    return sorted(names)


def _what_there_is(name: str, root: Path) -> str:
    names = list_runs(root)
    close = get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {', '.join(close)}?"
    here = f"stored are {', '.join(names)}; " if names else ""
    return f"{here}store one with `maquette logs ingest PATH`"
