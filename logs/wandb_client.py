"""The W&B service, asked for public runs: by its own client, with its login, transport and back-off.

The two queries for exports and rows are the texts that the client itself sends; its `scan_history` is not used,
because for a few new rows of a live run it downloads all exports of that run again.
"""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from experiments.configuration import InputError, printable

SAMPLES = 10_000
"""Rows asked for where the service gives samples only; it may give fewer."""

WAITS = (1.0, 4.0, 15.0, 60.0)
"""Seconds before each new try of a request that failed for a passing reason. The client backs off on its own
for busy answers (429 and 5xx); this is for what it gives up on and for cut connections."""

TIMEOUT = 60.0
"""Seconds that the client, or a download that stands still, is waited for."""

OFFLINE_TRIES = 4
"""How often a service is tried whose name is unknown or that takes no connection."""

REACH = 5.0
"""Seconds that a connection may take to come about."""

CLIENT_RETRIES = 3
"""How often the client tries again on its own, unless the user's settings say otherwise; by its own default it
goes on beyond `TIMEOUT`, and what was wrong is never told."""

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


class _OfflineError(OSError):
    """No connection to the service comes about."""


class RefusedError(Exception):
    """The service answered that it does not know or allow this query."""


@dataclass(frozen=True)
class PublicRun:
    """Where a run lives."""

    entity: str
    project: str
    id: str

    def __str__(self) -> str:
        return f"{self.entity}/{self.project}/{self.id}"


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
        if settings.x_graphql_retry_max is None:
            settings.x_graphql_retry_max = CLIENT_RETRIES
        self._reached = False
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
            found = self.patiently(run, "its state", lambda: self._run(run))
            last = self.patiently(run, "its last step", lambda: found.lastHistoryStep)
        except (RunNotFoundError, RefusedError) as error:
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
        what = f"rows from step {first:,}"
        return self.patiently(run, what, lambda: self._ask(ROWS_QUERY, variables | window)["history"] or [])

    def samples(self, run: PublicRun) -> list[dict[str, Any]]:
        """A sample of the rows, as the service likes to choose it."""
        return self.patiently(run, "samples", lambda: self._run(run).history(samples=SAMPLES, pandas=False))

    def patiently(self, run: PublicRun, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, which asks for `what` of `run`; tried again after each of `waits` if it fails
        for a passing reason, and said on stderr."""
        from wandb.sdk.lib.service.service_connection import WandbApiFailedError

        tries = len(self.waits) + 1
        for tried, wait in enumerate((*self.waits, 0.0), start=1):
            try:
                if not self._reached:
                    self._reach()
                result = call()
                self._reached = True
                return result
            except (WandbApiFailedError, OSError, HTTPException) as error:
                self._reached = False
                self._check_passing(run, error)
                if _is_offline(error):
                    tries = min(tries, OFFLINE_TRIES)
                why = f"{run}: {what}: {_reason(error)}"
                if tried >= tries:
                    raise UnreachableError(f"{why}; given up after {tried} tries") from None
                text = f"{why}; try {tried} of {tries} failed, the next one in {wait:g} s"
                print(printable(text), file=sys.stderr, flush=True)
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _reach(self) -> None:
        """Open a connection to the service, or to the proxy before it, and close it again: the client itself
        takes a minute to tell that there is no network.

        Raises:
            _OfflineError: none comes about.
        """
        url = urlsplit(self._service.base_url)
        proxy = getproxies().get(url.scheme) if not proxy_bypass(url.hostname or "") else None
        if proxy:
            url = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme="http")
        address = (url.hostname or "", url.port or {"http": 80, "https": 443}.get(url.scheme, 443))
        try:
            socket.create_connection(address, timeout=REACH).close()
        except OSError as error:
            what = f"the proxy {address[0]}" if proxy else address[0]
            raise _OfflineError(
                f"{what} (port {address[1]}) cannot be reached ({error.strerror or error}); see to the network"
            ) from None

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
            raise RefusedError(" ".join(str(error).split())) from None

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
            raise RefusedError("the service does not know the run any more")
        return found


def _is_offline(error: Exception) -> bool:
    """Whether a request failed because its host has no known name or takes no connection."""
    cause = error.reason if isinstance(error, URLError) else error
    return isinstance(cause, _OfflineError | socket.gaierror | ConnectionRefusedError)


def _reason(error: Exception) -> str:
    """What went wrong, on one line."""
    return " ".join(str(error).split()).rstrip(".")
