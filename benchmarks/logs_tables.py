"""Reading long tables of logs: CSV and JSON lines against polars, TensorBoard events against tbparse.

    python -m benchmarks.logs_tables [--rows 10000000] [--scalars 300000] [--rounds 3]

Each measurement is a process of its own, which reports its wall time without imports and its peak memory. The
sides of a comparison alternate, and the ratio is that of the fastest rounds. polars reads the whole table into
memory; `read` ends with the same table as a run, `ingest` also splices it, finds its quirks, hashes the file
and writes the store's Parquet file.
"""

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 100_000


def write_tables(folder: Path, rows: int) -> dict[str, Path]:
    """The same log of six columns, as training writes it, as CSV and as JSON lines."""
    paths = {"csv": folder / "log.csv", "jsonl": folder / "log.jsonl"}
    generator = np.random.default_rng(0)
    names = ("step", "train/loss", "lr", "grad_norm", "tokens", "tokens_per_second")
    as_json = "{" + ", ".join(f'"{name}": {{}}' for name in names).replace("{}", "%s") + "}\n"
    with paths["csv"].open("w") as table, paths["jsonl"].open("w") as lines:
        table.write(",".join(names) + "\n")
        for first in range(0, rows, CHUNK):
            step = np.arange(first, min(rows, first + CHUNK))
            cells = [
                step.tolist(),
                (3 + 10 / np.sqrt(1 + step) + generator.normal(0, 0.02, len(step))).tolist(),
                (3e-4 * np.minimum(1, (step + 1) / 1000)).tolist(),
                np.exp(generator.normal(-1, 0.3, len(step))).tolist(),
                ((step + 1) * 4096).tolist(),
                generator.normal(1e6, 1e4, len(step)).round(1).tolist(),
            ]
            for row in zip(*cells, strict=True):
                table.write(",".join(map(repr, row)) + "\n")
                lines.write(as_json % row)
    return paths


def write_events(folder: Path, scalars: int) -> Path:
    """An event file of ten tags, framed and packed by TensorBoard's own writer."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder / "events.out.tfevents.1700000000.host.1.0"
    values = np.random.default_rng(0).normal(size=scalars)
    with path.open("wb") as stream:
        writer = RecordWriter(stream)
        for i, value in enumerate(values):
            summary = Summary(value=[Summary.Value(tag=f"train/metric_{i % 10}", simple_value=value)])
            writer.write(Event(wall_time=1.7e9 + i, step=i // 10, summary=summary).SerializeToString())
    return path


def measured(side: str, path: Path) -> None:
    """Run one side in this process and print what it took."""
    run = {"polars": _polars, "read": _read, "ingest": _ingest, "tbparse": _tbparse}[side](path)
    start = time.perf_counter()
    rows = run()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "rows": rows}))


def _polars(path: Path) -> Any:
    import polars

    reader = polars.read_csv if path.suffix == ".csv" else polars.read_ndjson
    return lambda: len(reader(path))


def _tbparse(path: Path) -> Any:
    from tbparse import SummaryReader

    return lambda: len(SummaryReader(str(path)).scalars)


def _read(path: Path) -> Any:
    from logs.readers import find_reader, take_sample

    reader = find_reader(take_sample(path))
    return lambda: len(reader.read(path)[0].table)


def _ingest(path: Path) -> Any:
    from logs.ingest import ingest

    return lambda: len(ingest(path, "benchmark", root=path.parent / "store").runs[0].table)


def compare(path: Path, sides: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """The fastest time and the highest peak of each side."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for side in sides:
            command = [sys.executable, "-m", "benchmarks.logs_tables", "--side", side, "--path", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            now = json.loads(done.stdout.splitlines()[-1])
            best = found.setdefault(side, now)
            best["seconds"] = min(best["seconds"], now["seconds"])
            best["peak_mib"] = max(best["peak_mib"], now["peak_mib"])
    return found


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description="Reading long tables against polars and tbparse")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--scalars", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["csv", "jsonl", "tensorboard"])
    parser.add_argument("--data", type=Path, help="folder that keeps the files for another round")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measured(options.side, options.path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.data or Path(scratch)
        paths = {"csv": folder / "log.csv", "jsonl": folder / "log.jsonl"}
        if options.only != "tensorboard" and not all(path.exists() for path in paths.values()):
            paths = write_tables(folder, options.rows)
        print("| file | side | seconds | of the peer's | peak MiB |\n|---|---|---|---|---|")
        for kind, path in paths.items():
            if options.only in (None, kind):
                _print(
                    f"{kind}, {options.rows:,} rows",
                    compare(path, ["polars", "read", "ingest"], options.rounds),
                )
        if options.only in (None, "tensorboard"):
            events = write_events(folder, options.scalars)
            _print(
                f"events, {options.scalars:,} scalars", compare(events, ["tbparse", "read"], options.rounds)
            )
    print(f"\n{os.cpu_count()} CPUs, {struct.calcsize('P') * 8} bits")


def _print(what: str, sides: dict[str, dict[str, float]]) -> None:
    peer = next(iter(sides.values()))["seconds"]
    for side, found in sides.items():
        ratio = f"{found['seconds'] / peer:.2f}x"
        print(f"| {what} | {side} | {found['seconds']:.2f} | {ratio} | {found['peak_mib']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
