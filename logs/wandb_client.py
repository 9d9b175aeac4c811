"""The history of one public W&B run, fetched into a folder that only grows, and read back as a table.

    exports/<n>-<digest>.parquet             the history as the service exported it
    rows/<first>-<end>.<count>.jsonl.gz      rows of the steps first <= _step < end, word for word as they came
    sampled.jsonl.gz                         only where the service gives no full history
    fetched.json                             what the service last said of the run, and when rows last came

A file gets its name when it is whole, so a cut fetch goes on behind what is here and asks for none of it again.

The client of W&B carries the requests, with its login, transport and back-off. The two queries for exports and
rows are the texts that the client itself sends; its `scan_history` is not used, because for a few new rows of a
live run it downloads all exports of that run again.
"""

import gzip
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.configuration import Config, InputError, load, write_json, write_whole
from experiments.progress import progress

NAME = "wandb-pull"
VERSION = "1"

PAGE = 1_000
"""Steps asked for at a time."""

SAMPLES = 10_000
"""Rows asked for where the service gives samples only; it may give fewer."""

WAITS = (1.0, 4.0, 15.0, 60.0)
"""Seconds before each new try of a request that failed for a passing reason. The client backs off on its own
for busy answers (429 and 5xx); this is for what it gives up on and for cut connections."""

TIMEOUT = 60.0
"""Seconds that the client, or a download that stands still, is waited for."""

ENDED = frozenset({"finished", "crashed", "failed", "killed", "preempted"})

EXPORTS_QUERY = """query RunParquetHistory($entity: String!, $project: String!, $runName: String!,
    $liveKeys: [String!]!)
{ project(name: $project, entityName: $entity) { run(name: $runName) {
    parquetHistory(liveKeys: $liveKeys) { parquetUrls } } } }"""

ROWS_QUERY = """query HistoryPage($entity: String!, $project: String!, $run: String!,
    $minStep: Int64!, $maxStep: Int64!, $pageSize: Int!)
{ project(name: $project, entityName: $entity) { run(name: $run) {
    history(minStep: $minStep, maxStep: $maxStep, samples: $pageSize) } } }"""

T = TypeVar("T")


class UnreachableError(Exception):
    """The service did not answer in the end. What came is kept; the same command goes on from there."""


class _RefusedError(Exception):
    """The service answered that it does not know or allow this query."""


@dataclass(frozen=True)
class PublicRun:
    """Where a run lives."""

    entity: str
    project: str
    id: str

    def __str__(self) -> str:
        return f"{self.entity}/{self.project}/{self.id}"


class Fetched(Config):
    """`fetched.json`: state of the run at the service, its last step, the rows that the service counts and
    how many of them did not come, whether what came are samples, and the UTC time at which rows last came."""

    state: str
    last_step: int
    rows_at_service: int | None
    missing: int
    sampled: bool
    time: str


class Connection:
    """The client's way to the service, with a bound on how often a request is tried.

    A key is used if the user has one (WANDB_API_KEY, `wandb login`); without one the service is asked as
    anyone may ask it.
    """

    def __init__(self, waits: Sequence[float] = WAITS) -> None:
        from wandb import env
        from wandb.apis.public.service_api import ServiceApi
        from wandb.sdk import wandb_setup
        from wandb.sdk.lib import wbauth

        settings = wandb_setup.singleton().settings.model_copy()
        host = env.get_base_url(settings.base_url) or settings.base_url
        auth = wbauth.authenticate_session(host=host, source="maquette", prompt=False, update_session=False)
        wbauth.set_auth_settings(settings, auth)
        settings.base_url = host
        self.has_key = auth is not None
        self.app_url = settings.app_url
        self.waits = tuple(waits)
        self._service = ServiceApi(settings=settings, timeout=TIMEOUT)

    def describe(self, run: PublicRun) -> tuple[str, int, int | None]:
        """State of the run, its last step (-1: none yet), and the number of its rows if the service says.

        Raises:
            InputError: no such run, or the service wants a key.
            UnreachableError: no answer after all tries.
        """
        from wandb.apis.public.runs import RunNotFoundError

        try:
            found = self.patiently(run, lambda: self._run(run))
            last = self.patiently(run, lambda: found.lastHistoryStep)
        except (RunNotFoundError, _RefusedError) as error:
            raise InputError(f"{run}: no such public run: {error}. {self._how_to_get_a_key()}") from None
        rows = getattr(found, "historyLineCount", None)
        return str(found.state), int(last), rows if isinstance(rows, int) else None

    def export_urls(self, run: PublicRun) -> list[str]:
        """Addresses of the exported files, in order of time; none if the service has none. Asked once only:
        addresses run out, so whoever downloads is patient with asking and downloading together."""
        variables = {"entity": run.entity, "project": run.project, "runName": run.id, "liveKeys": ["_step"]}
        history = self._ask(EXPORTS_QUERY, variables)["parquetHistory"] or {}
        return list(history.get("parquetUrls") or [])

    def rows(self, run: PublicRun, first: int, end: int) -> list[str]:
        """The rows with first <= _step < end that are not in exports, each as the service's JSON text."""
        variables = {"entity": run.entity, "project": run.project, "run": run.id}
        window = {"minStep": first, "maxStep": end, "pageSize": end - first}
        return self.patiently(run, lambda: self._ask(ROWS_QUERY, variables | window)["history"] or [])

    def samples(self, run: PublicRun) -> list[dict[str, Any]]:
        """A sample of the rows, as the service likes to choose it."""
        return self.patiently(run, lambda: self._run(run).history(samples=SAMPLES, pandas=False))

    def patiently(self, run: PublicRun, call: Callable[[], T]) -> T:
        """The result of `call`, tried again after each of `waits` if it fails for a passing reason."""
        from wandb.sdk.lib.service.service_connection import WandbApiFailedError

        for wait in (*self.waits, None):
            try:
                return call()
            except (WandbApiFailedError, OSError, HTTPException) as error:
                self._check_passing(run, error)
                if wait is None:
                    text = " ".join(str(error).split())
                    raise UnreachableError(
                        f"{run}: given up after {len(self.waits) + 1} tries: {text}"
                    ) from None
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _check_passing(self, run: PublicRun, error: Exception) -> None:
        """Raise what no new try will change: a key that is wanted, a refusal."""
        answer = getattr(error, "response", None)
        status = error.code if isinstance(error, HTTPError) else getattr(answer, "http_status", 0)
        if isinstance(error, HTTPError):
            return  # an address that ran out is asked for anew by the next try
        if status in (401, 403):
            why = "does not let this key read it" if self.has_key else "does not show it without a key"
            raise InputError(f"{run}: the service {why} ({status}). {self._how_to_get_a_key()}") from None
        if (400 <= status < 500 and status not in (408, 429)) or str(error).startswith("input:"):
            raise _RefusedError(" ".join(str(error).split())) from None

    def _how_to_get_a_key(self) -> str:
        return (
            f"A key is free: make one at {self.app_url.rstrip('/')}/authorize and give it as WANDB_API_KEY, "
            "or run `wandb login`"
        )

    def _run(self, run: PublicRun) -> Any:
        from wandb.apis.public import Run as WandbRun

        return WandbRun(self._service, run.entity, run.project, run.id)

    def _ask(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._service.execute_graphql(query, variables)
        found = (answer.get("project") or {}).get("run")
        if found is None:
            raise _RefusedError("the service does not know the run any more")
        return found


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
    except _RefusedError:
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
        connection.patiently(run, attempt)
    except _RefusedError:
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
