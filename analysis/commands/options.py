"""What the commands share: where runs are stored, how a result is written and shown."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.configuration import InputError, write_json

ROOT = Path("logs/runs")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]
Store = Annotated[Path, typer.Option("--store", help="Folder of the stored runs.")]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON document to this file.")]


def finish(
    document: dict[str, Any], out: Path | None, as_json: bool, table: Callable[[dict[str, Any]], None]
) -> None:
    """Write the document to `out` if that is given, and print it: as JSON, or as `table` prints it."""
    if out is not None:
        write_json(out, document)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    table(document)


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def runs_below(prefix: str, store: Path) -> list[Any]:
    """All stored runs whose name begins with `prefix/`.

    Raises:
        InputError: there are none.
    """
    from logs.store import list_runs, read_run

    names = [name for name in list_runs(store) if name.startswith(f"{prefix.rstrip('/')}/")]
    if not names:
        raise InputError(f"no runs below {prefix!r} in {store}; train and ingest them first")
    return [read_run(name, store) for name in names]
