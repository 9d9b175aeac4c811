"""Public runs of the catalogue, pulled from W&B: fetch what is new, read all rows, splice, store.

Raw rows stay in `<cache>/<name>/<run id>/` (see `logs.wandb_fetch`), the run goes to the store. The time of
the pull stands in `fetched` of each source in `run.json` and nowhere else: the table has the same bytes however
often the run was pulled on the way.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from experiments.configuration import InputError, read_yaml
from logs.catalogue import Entry, lookup
from logs.ingest import complete
from logs.naming import canonical_names
from logs.parsing.cells import as_numbers
from logs.parsing.json_document import json_number
from logs.schema import AXES, Quirk, Run, Source, make_table, unit_of
from logs.store import ROOT, read_run, write_run
from logs.wandb_client import Connection, PublicRun
from logs.wandb_fetch import (
    ENDED,
    NAME,
    VERSION,
    Fetched,
    content_hash,
    fetch,
    held_rows,
    raw_files,
    read_lines,
    read_state,
)

CACHE = Path(".maquette/pulls")
OWN_STEP = "global_step"
"""The key under which Levanter, Lightning and Hugging Face log the step that is done."""


class AlreadyRunningError(Exception):
    """Another process is pulling this run."""


@dataclass(frozen=True)
class Pulled:
    """What a pull did: new rows and state of each W&B run, and the stored run (None: nothing was new)."""

    new_rows: dict[str, int]
    states: dict[str, Fetched]
    run: Run | None


def pull(
    name: str,
    root: Path = ROOT,
    cache: Path = CACHE,
    follow: bool = False,
    connect: Callable[[], Connection] = Connection,
) -> Pulled:
    """Fetch what is new of the public run `name` and store it, its forked runs spliced.

    Args:
        root: the store.
        cache: where raw rows are kept.
        follow: leave alone the W&B runs before the last one that had ended when they were last fetched.
        connect: makes the connection to the service.

    Raises:
        InputError: no such run in the catalogue, it is not on W&B, or the service does not let it be read.
        AlreadyRunningError: another process is at it.
        UnreachableError: the service did not answer; what came until then is kept.
    """
    entry = lookup(name)
    if entry.wandb is None:
        raise InputError(f"{name} cannot be pulled: no public W&B run of it is known. {entry.how_to_get}")
    with one_at_a_time(cache / name):
        connection = connect()
        new: dict[str, int] = {}
        for segment in entry.segments:
            public = PublicRun(entry.wandb.entity, entry.wandb.project, segment.run)
            live_only = follow and segment is not entry.segments[-1]  # a crashed tip may go on under its id
            new[segment.run] = fetch(connection, public, cache / name / segment.run, live_only)
        states = {run: state for run in new if (state := read_state(cache / name / run))}
        if not any(new.values()) and _stored_from(name, root) == {state.time for state in states.values()}:
            return Pulled(new, states, None)
        run = assemble(entry, cache / name)
        write_run(run, root)
        return Pulled(new, states, run)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; the kernel lets go of it however this process ends.

    Raises:
        AlreadyRunningError: another process holds it.
        InputError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AlreadyRunningError(f"{folder.name} is being pulled by another process") from None
        yield


def _stored_from(name: str, root: Path) -> set[str | None]:
    """When the rows of the stored run were fetched; nothing if it is absent, damaged, or from elsewhere."""
    try:
        return {source.fetched for source in read_run(name, root).sources}
    except InputError:
        return set()


def assemble(entry: Entry, folder: Path) -> Run:
    """The run from the raw rows in `folder`, spliced by the catalogue.

    Raises:
        InputError: there are no rows, or a raw file is damaged.
    """
    assert entry.wandb is not None
    parts = []
    for segment in entry.segments:
        public = PublicRun(entry.wandb.entity, entry.wandb.project, segment.run)
        state = read_state(folder / segment.run)
        if state and raw_files(folder / segment.run):
            parts.append(read_part(entry, public, folder / segment.run, state))
    if not parts:
        raise InputError(f"{entry.name}: the service holds no rows of this run yet; pull it again later")
    return complete(parts, entry.name, entry)


def read_part(entry: Entry, public: PublicRun, folder: Path, state: Fetched) -> Run:
    """One W&B run, its keys by their canonical names."""
    rows, no_numbers = read_rows(folder)
    names = metric_names(entry, [key for key in rows.column_names if key != "_step"])
    scales = {metric.logged_as: metric.scale for metric in entry.metrics.values()}
    columns: dict[str, pd.Series] = {"step": pd.Series(rows.column("_step").to_numpy())}
    for key, name in sorted(names.items(), key=lambda pair: pair[1]):
        cells = rows.column(key)
        if scales.get(key, 1) != 1:
            cells = pc.multiply(cells, scales[key])
        if name in ("tokens", "samples"):
            cells = pc.floor(pc.if_else(pc.less(pc.abs(cells), 2.0**63), cells, None)).cast(pa.int64())
        columns[name] = pd.Series(pd.arrays.ArrowExtensionArray(cells))
    table = make_table(pd.DataFrame(columns), run="", segment=public.id)
    return Run(
        "",
        table,
        {name: unit_of(name) for name in table.columns[len(AXES) :]},
        quirks=(*_quirks(public.id, state, len(rows), folder, no_numbers), *_step_quirks(public.id, rows)),
        sources=(
            Source(
                path=f"wandb:{public}",
                sha256=content_hash(folder),
                reader=NAME,
                reader_version=VERSION,
                fetched=state.time,
            ),
        ),
        inferred=tuple(
            f"{name} = the logged {metric.logged_as} * {metric.scale:g}"
            for name, metric in entry.metrics.items()
            if metric.scale != 1 and metric.logged_as in names
        ),
    )


def metric_names(entry: Entry, keys: list[str]) -> dict[str, str]:
    """Logged key -> canonical name: the catalogue's for this run, else by the table of names. A key whose own
    name another one has taken is kept as `as_logged/<key>`."""
    names = {metric.logged_as: name for name, metric in entry.metrics.items() if metric.logged_as in keys}
    taken = {*names.values(), "step"}
    by_table = canonical_names([key for key in keys if key not in names])
    for key, name in by_table.items():
        free = next((n for n in (name, key) if n not in taken and n not in AXES[:3]), f"as_logged/{key}")
        taken.add(free)
        names[key] = free
    return names


def read_rows(folder: Path) -> tuple[pa.Table, list[str]]:
    """The fetched rows, sorted by `_step`, a step once; null where a key was not logged.

    Returns:
        `_step` as integers, all else as doubles; and the keys that hold anything but numbers (text,
        histograms, media), which stay in the raw files.

    Raises:
        InputError: a raw file is damaged.
    """
    tables, others = [], set()
    for path in raw_files(folder):
        try:
            table, not_numbers = _read_export(path) if path.suffix == ".parquet" else _read_page(path)
        except (pa.ArrowException, OSError, EOFError, ValueError, KeyError) as error:
            raise InputError(f"{path}: damaged ({error}); remove it and pull again") from None
        tables.append(table)
        others |= not_numbers
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    steps = rows.column("_step").to_numpy()
    if (np.diff(steps) <= 0).any():
        rows = rows.take(pa.array(np.unique(steps, return_index=True)[1]))
    return rows, sorted(others)


def _read_export(path: Path) -> tuple[pa.Table, set[str]]:
    cells = pq.read_table(path)
    columns: dict[str, Any] = {"_step": cells.column("_step").cast(pa.int64())}
    others: set[str] = set()
    for key in cells.column_names:
        if key == "_step":
            continue
        logged = cells.column(key)
        numbers = as_numbers(logged.combine_chunks())
        if numbers.text:
            others.add(key)
        if numbers.text < len(logged) - logged.null_count:
            columns[key] = numbers.cells
    return pa.table(columns), others


def _read_page(path: Path) -> tuple[pa.Table, set[str]]:
    lines = read_lines(path)
    steps = np.zeros(len(lines), np.int64)
    found: dict[str, tuple[list[int], list[float]]] = {}
    others: set[str] = set()
    for row, line in enumerate(lines):
        for key, cell in _flat(json.loads(line)):
            number = json_number(cell)
            if key == "_step":
                steps[row] = cell
            elif number is not None:
                at, values = found.setdefault(key, ([], []))
                at.append(row)
                values.append(number)
            elif cell is not None:
                others.add(key)
    columns: dict[str, Any] = {"_step": steps}
    for key, (at, values) in found.items():
        cells, absent = np.zeros(len(lines)), np.ones(len(lines), bool)
        cells[at], absent[at] = values, False
        columns[key] = pa.array(cells, mask=absent)
    return pa.table(columns), others


def _flat(row: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values, nested ones as `outer.inner` as in exports; what has a `_type` is media and one value."""
    for key, value in row.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _quirks(run: str, state: Fetched, n_rows: int, folder: Path, no_numbers: list[str]) -> tuple[Quirk, ...]:
    quirks = []
    total = f" of {state.rows_at_service}" if state.rows_at_service is not None else ""
    if state.sampled:
        action = "the service gave no full history; the rows between are missing, spikes may be hidden"
        quirks.append(
            Quirk(kind="sampled_history", count=n_rows, where=f"{run}: {n_rows}{total} rows", action=action)
        )
    elif state.missing:
        where = f"{run}: {held_rows(folder)}{total} rows that the service counts"
        quirks.append(
            Quirk(kind="incomplete_history", count=state.missing, where=where, action="not given; left open")
        )
    if no_numbers:
        shown = ", ".join(no_numbers[:5]) + (", ..." if len(no_numbers) > 5 else "")
        quirks.append(
            Quirk(
                kind="text_value",
                count=len(no_numbers),
                where=f"{run}: keys {shown}",
                action="text, histograms or media; they stay in the raw rows",
            )
        )
    return tuple(quirks)


def _step_quirks(run: str, rows: pa.Table) -> list[Quirk]:
    """Rows in which the run's own step is not W&B's counter, by which forks and the catalogue count."""
    if OWN_STEP not in rows.column_names:
        return []
    steps, own = rows.column("_step"), rows.column(OWN_STEP)
    differ = pc.fill_null(pc.not_equal(own, steps), False).to_numpy()
    if not differ.any():
        return []
    first = int(differ.argmax())
    where = f"{run}: first at _step {steps[first]}, where {OWN_STEP} is {own[first].as_py():g}"
    action = f"step is W&B's `_step`; {OWN_STEP} is kept as a metric"
    return [Quirk(kind="step_disagrees", count=int(differ.sum()), where=where, action=action)]


def stage_that_makes(folder: Path) -> str | None:
    """The stage in dvc.yaml of the current folder that has `folder` among its outputs, if any.

    DVC makes an output anew that is not what its stage left there, unless it is told to keep it.
    """
    if not Path("dvc.yaml").is_file():
        return None
    stages = read_yaml("dvc.yaml").get("stages") or {}
    return next(
        (name for name, stage in stages.items() if folder.as_posix() in (stage.get("outs") or [])), None
    )


def pulled_json(name: str, pulled: Pulled) -> dict[str, Any]:
    """`pulled` as `maquette logs pull --json` prints it."""
    from logs.summary import summarise

    runs = [
        {"id": run, "new_rows": new, **(state.model_dump() if (state := pulled.states.get(run)) else {})}
        for run, new in pulled.new_rows.items()
    ]
    summary = summarise(pulled.run) if pulled.run else None
    new_rows = sum(pulled.new_rows.values())
    return {"name": name, "new_rows": new_rows, "runs": runs, "run": summary, "note": _note(name, pulled)}


def _note(name: str, pulled: Pulled) -> str | None:
    """That the last run the catalogue knows ended early: training may go on in a fork that it does not know."""
    entry = lookup(name)
    planned, tip = entry.run_facts.steps_planned, entry.segments[-1].run
    state = pulled.states.get(tip)
    if planned is None or state is None or state.state not in ENDED or state.last_step + 1 >= planned:
        return None
    return (
        f"{tip} is {state.state} at step {state.last_step:,} of {planned:,}; if training goes on in a newer "
        f"fork, add it to the segments in logs/catalogue/{name}.yaml"
    )
