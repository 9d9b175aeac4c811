"""What `maquette logs` shows to people: tables, counts, and on stderr what was left out."""

import json
import sys
from typing import Any

from experiments.configuration import printable

MOST_LEFT_ALONE = 10
"""Files that are named one by one; --json names all."""


def tell_left_alone(files: list[dict[str, str]]) -> None:
    """Say on stderr which files of a folder are not in the store, and why."""
    if not files:
        return
    print(f"{len(files)} files are no training logs and were left alone:", file=sys.stderr)
    for left in files[:MOST_LEFT_ALONE]:
        reason, _, _ = left["reason"].partition("; known:")
        print(printable(f"  {left['file']}: {reason}"), file=sys.stderr)
    if len(files) > MOST_LEFT_ALONE:
        print(f"  and {len(files) - MOST_LEFT_ALONE} more; --json names all", file=sys.stderr)


def tell_unreadable(error: OSError) -> None:
    """Say on stderr that a folder of the store cannot be read."""
    print(printable(f"{error.filename} is not listed: {error.strerror}"), file=sys.stderr)


def extent(run: dict[str, Any]) -> str:
    """How many rows a run has and which steps its lineage spans, if any row is part of it."""
    rows = f"{run['rows']:,} rows"
    if run["first_step"] is None:
        return f"{rows}, none in the lineage (logged after a fork); read them with the run's other files"
    return f"{rows}, steps {run['first_step']:,}-{run['last_step']:,}"


def show_run(run: dict[str, Any]) -> None:
    """Print the summary of a run (`logs.summary.summarise`) as tables."""
    show(f"{run['name']} ({run['format']}): {extent(run)}")
    if len(run["segments"]) > 1:
        segments = table_with("segment", "from step", "last row")
        for segment in run["segments"]:
            add_row(segments, segment["id"], f"{segment['first_step']:,}", f"{segment['last_step']:,}")
        show(segments)
    metrics = table_with("metric", "unit", "points", "first", "last", "min", "max", "non-finite")
    for name, metric in run["metrics"].items():
        numbers = [_number(metric[key]) for key in ("first", "last", "min", "max")]
        add_row(metrics, name, metric["unit"], str(metric["n"]), *numbers, str(metric["non_finite"]))
    show(metrics)
    if run["quirks"]:
        quirks = table_with("quirk", "count", "where", "what was done")
        for quirk in run["quirks"]:
            add_row(quirks, quirk["kind"], str(quirk["count"]), quirk["where"], quirk["action"])
        show(quirks)
    for statement in run["inferred"]:
        show(f"inferred: {statement}")


def table_with(*headers: str) -> Any:
    """A table whose first column, the names, is never cut."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, no_wrap=i == 0, overflow="fold")
    return table


def add_row(table: Any, *cells: str) -> None:
    """A row of `table_with`; characters that would steer the terminal show as escapes."""
    table.add_row(*map(printable, cells))


def short_count(count: int | None) -> str:
    """A count with three digits and its unit: 535B."""
    if count is None:
        return ""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def show(what: Any) -> None:
    """Print a text or a table."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    text = isinstance(what, str)
    console = Console(width=width, markup=False, highlight=False, soft_wrap=text)
    console.print(printable(what) if text else what)


def print_json(document: Any) -> None:
    """Print the one JSON document of a command."""
    print(json.dumps(document, indent=2, allow_nan=False))
