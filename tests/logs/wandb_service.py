"""A stand-in for the W&B service on loopback: what its client asks for when a public run is read.

Faults are queued: an HTTP status, or "cut" for a connection that breaks in the middle of the answer.
"""

import io
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass
class ServedRun:
    """A run at the service: rows already exported to files, and the live ones behind them, of which the newest
    `withheld` are counted but not given yet."""

    rows: list[dict[str, Any]]
    state: str = "finished"
    export_until: int = 0
    exports: list[int] = field(default_factory=list)
    counted: int | None = None
    withheld: int = 0

    @property
    def live(self) -> list[dict[str, Any]]:
        given = self.rows[: len(self.rows) - self.withheld]
        return [row for row in given if row["_step"] >= self.export_until]

    def export(self, until: int) -> None:
        """Move the rows before the step `until` from the live ones into one more file."""
        self.exports.append(self.export_until)
        self.export_until = until

    def export_file(self, number: int) -> bytes:
        first, end = [*self.exports, self.export_until][number : number + 2]
        rows = [row for row in self.rows if first <= row["_step"] < end]
        keys = list(dict.fromkeys(key for row in rows for key in row))
        stream = io.BytesIO()
        pq.write_table(pa.table({key: [row.get(key) for row in rows] for key in keys}), stream)
        return stream.getvalue()


class WandbService:
    """The service: `runs` by (entity, project, id), `asked` what came in, `faults` what goes wrong next."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str, str], ServedRun] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, list[int | str]] = {}
        self.refused: set[str] = set()
        self.keys_wanted: set[str] = set()
        self.before_answer: Callable[[str], None] = lambda operation: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def operations(self) -> list[str]:
        """Names of the operations asked for since the last call."""
        names = [name for name, _ in self.asked]
        self.asked.clear()
        return names

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        key = (variables["entity"], variables["project"])
        run_id = variables.get("name") or variables.get("run") or variables["runName"]
        run = self.runs.get((*key, run_id))
        if operation in self.refused:
            return {"errors": [{"message": f"Cannot query field of {operation}"}]}
        if run is None:
            return {"data": {"project": {"run": None}}}
        return {"data": {"project": {"run": getattr(self, f"_{operation}")(run, run_id, variables)}}}

    def _Run(self, run: ServedRun, run_id: str, variables: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        lines = len(run.rows) if run.counted is None else run.counted
        none = ("tags", "sweepName", "group", "jobType", "user", "description", "notes", "commit")
        known = {"id": run_id, "name": run_id, "displayName": run_id, "state": run.state, "projectId": "1"}
        return {**dict.fromkeys(none), **known, "readOnly": False, "createdAt": "", "historyLineCount": lines}

    def _RunHistoryKeys(self, run: ServedRun, *_: Any) -> dict[str, Any]:  # noqa: N802
        return {"historyKeys": {"lastStep": max((row["_step"] for row in run.rows), default=-1)}}

    def _RunParquetHistory(self, run: ServedRun, run_id: str, _: Any) -> dict[str, Any]:  # noqa: N802
        signed = len(self.asked)  # a signature that differs every time
        urls = [f"{self.url}/exports/{run_id}/{i}.parquet?sign={signed}" for i in range(len(run.exports))]
        return {
            "parquetHistory": {"parquetUrls": urls, "liveData": [{"_step": r["_step"]} for r in run.live]}
        }

    def _HistoryPage(self, run: ServedRun, _: str, v: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        rows = [row for row in run.live if v["minStep"] <= row["_step"] < v["maxStep"]]
        return {"history": [json.dumps(row) for row in rows[: v["pageSize"]]]}

    def _RunFullHistory(self, run: ServedRun, _: str, v: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        every = max(1, len(run.rows) // 50)  # whatever was asked for
        return {"history": [json.dumps(row) for row in run.rows[::every]][: v["samples"]]}

    def _handler(service) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path != "/graphql":
                    return self._send(404, b"{}", "")
                asked = json.loads(body)
                operation = re.search(r"\bquery\s+(\w+)", asked["query"])[1]
                service.asked.append(
                    (operation, {**asked["variables"], "auth": self.headers["Authorization"]})
                )
                service.before_answer(operation)
                if (
                    asked["variables"].get("project") in service.keys_wanted
                    and not self.headers["Authorization"]
                ):
                    return self._send(401, b"{}", "")
                answer = service.answer(operation, asked["variables"])
                return self._send(200, json.dumps(answer).encode(), operation)

            def do_GET(self) -> None:
                run_id, number = re.match(r"/exports/(.+)/(\d+)\.parquet", self.path).groups()
                run = next(run for key, run in service.runs.items() if key[2] == run_id)
                start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
                service.asked.append(("export", {"number": int(number), "start": start}))
                body = run.export_file(int(number))[start:]
                self._send(206 if start else 200, body, "export")

            def _send(self, status: int, body: bytes, operation: str) -> None:
                faults = service.faults.get(operation) or [None]
                fault = faults.pop(0)
                if isinstance(fault, int):
                    status, body = fault, b"{}"
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
                if fault == "cut":
                    self.close_connection = True

        return Handler
