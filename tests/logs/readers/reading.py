"""What the tests of readers share: a text read as a file, and what came of it."""

from pathlib import Path

from logs.ingest import read_logs
from logs.schema import Run


def read(path: Path, text: str | bytes, reader: str) -> Run:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (run,) = read_logs(path).runs
    assert run.sources[0].reader == reader
    return run


def series(run: Run, metric: str) -> dict[int, float]:
    points = run.series(metric)
    return dict(zip(points["step"].tolist(), points["value"].tolist(), strict=True))


def quirks(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for quirk in run.quirks:
        found[quirk.kind] = found.get(quirk.kind, 0) + quirk.count
    return found
