"""The history of one public W&B run, fetched into a folder that only grows, and read back as a table.

    exports/<n>-<digest>.parquet             the history as the service exported it
    rows/<first>-<end>.<count>.jsonl.gz      rows of the steps first <= _step < end, word for word as they came
    sampled.jsonl.gz                         only where the service gives no full history
    fetched.json                             what the service last said of the run, and when rows last came

A file gets its name when it is whole, so a cut fetch goes on behind what is here and asks for none of it again.
"""

import gzip
import json
import os
import shutil
from contextlib import nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.configuration import Config, load, write_json, write_whole
from experiments.progress import progress
from logs.wandb_client import TIMEOUT, Connection, PublicRun, RefusedError

NAME = "wandb-pull"
VERSION = "1"

PAGE = 1_000
"""Steps asked for at a time."""

ENDED = frozenset({"finished", "crashed", "failed", "killed", "preempted"})


class Fetched(Config):
    """`fetched.json`: state of the run at the service, its last step, the rows that the service counts and
    how many of them did not come, whether what came are samples, and the UTC time at which rows last came."""

    state: str
    last_step: int
    rows_at_service: int | None
    missing: int
    sampled: bool
    time: str


def fetch(connection: Connection, run: PublicRun, folder: Path, live_only: bool = False) -> int:
    """Fetch what is new of `run` into `folder`. Returns the number of new rows.

    Args:
        live_only: leave a run alone that had ended when it was last fetched.

    Raises:
        InputError: no such run, or the service wants a key.
        UnreachableError: no answer after all tries; what came until then is kept.
    """
    before = read_state(folder)
    if before and live_only and before.state in ENDED:
        return 0
    state, last, rows_at_service = connection.describe(run)
    held_before = held_rows(folder)
    if before is None:
        _fetch_exports(connection, run, folder)
    try:
        _fetch_rows(connection, run, folder, last + 1)
        if before and _missing(rows_at_service, folder) > before.missing:
            _fetch_exports(connection, run, folder)  # rows went from the live tail into an export meanwhile
    except RefusedError:
        pass  # the rows in exports, or else samples, are all there is
    new = held_rows(folder) - held_before
    sampled = last >= 0 and held_rows(folder) == 0
    if sampled:
        new = _keep_samples(connection.samples(run), folder)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    fetched = Fetched(
        state=state,
        last_step=last,
        rows_at_service=rows_at_service,
        missing=_missing(rows_at_service, folder),
        sampled=sampled,
        time=before.time if before and not new else now,
    )
    if fetched != before:
        write_json(folder / "fetched.json", fetched.model_dump())
    return new


def _fetch_rows(connection: Connection, run: PublicRun, folder: Path, end: int) -> None:
    """The rows behind all that is here and before the step `end`, page by page."""
    first = _next_step(folder)
    with progress(run.id, end, "steps", first) if end - first > PAGE else nullcontext() as advance:
        for page in range(first, end, PAGE):
            _keep_rows(connection.rows(run, page, min(page + PAGE, end)), folder)
            if advance:
                advance(min(page + PAGE, end))


def read_state(folder: Path) -> Fetched | None:
    """What is known of the run since the last whole fetch, None before it.

    Raises:
        InputError: `fetched.json` is not what `fetch` writes.
    """
    path = folder / "fetched.json"
    return load(path, Fetched) if path.is_file() else None


def held_rows(folder: Path) -> int:
    """The number of rows of full history in `folder`, from the files' footers and names."""
    return sum(pq.read_metadata(path).num_rows for path in exports(folder)) + sum(
        int(path.name.split(".")[1]) for path in pages(folder)
    )


def exports(folder: Path) -> list[Path]:
    """The exported files in `folder`, in order of time."""
    return sorted(folder.glob("exports/*.parquet"))


def pages(folder: Path) -> list[Path]:
    """The files of rows in `folder`, in order of steps."""
    return sorted(folder.glob("rows/*.jsonl.gz"))


def raw_files(folder: Path) -> list[Path]:
    """The files that hold the history: the full one, or else the samples."""
    return [*exports(folder), *pages(folder)] or list(folder.glob("sampled.jsonl.gz"))


def read_lines(path: Path) -> list[str]:
    """The rows in a page or in the samples, each as JSON text."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def _next_step(folder: Path) -> int:
    """The step behind all that is here."""
    ends = [int(path.name.split(".")[0].split("-")[1]) for path in pages(folder)[-1:]]
    for path in exports(folder):
        steps = pq.read_table(path, columns=["_step"]).column("_step")
        ends += [max(steps.to_pylist()) + 1] if len(steps) else []
    return max(ends, default=0)


def _missing(rows_at_service: int | None, folder: Path) -> int:
    return 0 if rows_at_service is None else max(0, rows_at_service - held_rows(folder))


def _keep_rows(rows: list[str], folder: Path) -> None:
    """Write a page, named by the steps that it really reaches: the service may be behind its own last step."""
    if not rows:
        return
    steps = [int(json.loads(row)["_step"]) for row in rows]
    path = folder / "rows" / f"{min(steps):012d}-{max(steps) + 1:012d}.{len(rows)}.jsonl.gz"
    _write_lines(rows, path)


def _keep_samples(samples: list[dict[str, Any]], folder: Path) -> int:
    """Replace the samples in `folder`; 0 if they are the same as before, else their number."""
    path, lines = folder / "sampled.jsonl.gz", [json.dumps(row) for row in samples]
    if path.is_file() and read_lines(path) == lines:
        return 0
    _write_lines(lines, path)
    return len(lines)


def _write_lines(lines: list[str], path: Path) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    with write_whole(path, "wb") as stream:
        stream.write(gzip.compress(text, compresslevel=5, mtime=0))


def _fetch_exports(connection: Connection, run: PublicRun, folder: Path) -> None:
    """Download the exported files that are not here; a cut one goes on where it stopped."""

    def attempt() -> None:
        for number, url in enumerate(connection.export_urls(run)):
            digest = sha256(urlsplit(url).path.encode()).hexdigest()[:12]
            if not list(folder.glob(f"exports/*-{digest}.parquet")):
                _download(url, folder / "exports" / f"{number:04d}-{digest}.parquet")

    try:
        connection.patiently(run, "exported files", attempt)
    except RefusedError:
        return  # a service without exports: the rows are asked for one by one


def _download(url: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urlopen(request, timeout=TIMEOUT) as answer:
        continued = answer.status == 206
        size = int(answer.headers.get("Content-Length") or 0) + (have if continued else 0)
        with part.open("ab" if continued else "wb") as stream:
            shutil.copyfileobj(answer, stream)
    if part.stat().st_size < size:
        raise OSError(f"the connection was cut after {part.stat().st_size} of {size} bytes of {path.name}")
    try:
        pq.read_metadata(part)
    except pa.ArrowException as error:
        part.unlink()
        raise OSError(f"{path.name} is no Parquet file: {error}") from None
    os.replace(part, path)


def content_hash(folder: Path) -> str:
    """SHA-256 of the fetched history; how often it was asked for in between makes no difference."""
    digest = sha256()
    for path in raw_files(folder):
        with path.open("rb") if path.suffix == ".parquet" else gzip.open(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
