"""`maquette score`: a preregistration against the log."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish


def score(
    file: Annotated[
        Path, typer.Argument(help="A preregistration; its folder's others make the calibration.")
    ],
    out: Out = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Compare a preregistered forecast with the log; exit code 1 if the file was changed."""
    from analysis.forecast.preregistration import BrokenError
    from analysis.forecast.record import score_file

    try:
        document = score_file(file, store)
    except BrokenError as error:
        print(f"maquette: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finish(document, out, as_json, _print)


def _print(document: dict[str, Any]) -> None:
    print(document["finding"])
    done = document["calibration"]
    if done["landed"]:
        print(
            f"Of {done['landed']} preregistrations that landed, {done['inside']} lie inside their "
            f"{100 * done['level']:.0f} % intervals ({done['preregistered'] - done['landed']} still open)."
        )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
