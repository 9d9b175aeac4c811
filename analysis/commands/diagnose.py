"""`maquette diagnose`: what happened to a run, why, and what to try."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish
from experiments.configuration import InputError

STYLES = {"healthy": "green", "warning": "yellow", "diverged": "red", "info": "dim", "severe": "red"}

MOST_ALIKE = 3
"""Findings of one kind shown in full; of more, the steps are listed."""


def diagnose(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME-or-PATH...", help="Stored runs, or any logs; several are held against each other."
        ),
    ],
    out: Out = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Find spikes, divergence, stalls and more in a log; say how bad, likely why, and what to try first.

    Give the other runs that read the same data in the same order as well, and a spike that stands in all of them is
    told apart as that of the batch. A table of final losses is searched for cells that diverged.
    """
    from analysis.diagnosis.diagnose import diagnose_all, diagnose_cells

    runs: list[Any] = []
    sweeps: list[dict[str, Any]] = []
    for log in logs:
        found, table = _runs_or_table(log, store)
        runs += found
        sweeps += [] if table is None else [diagnose_cells(table, Path(log).stem)]
    document = diagnose_all(runs)
    document["runs"] += sweeps
    alone = len(document["runs"]) == 1
    finish(document["runs"][0] if alone else document, out, as_json, _print_one if alone else _print_all)


def _runs_or_table(log: str, store: Path) -> tuple[list[Any], Any]:
    """The runs of a name or path, or the table there if it is CSV that is no log and has a column of losses
    beside others.

    Raises:
        InputError: neither of them.
    """
    from analysis.csv_table import read_csv
    from analysis.diagnosis.cells import loss_column
    from logs.lookup import runs_at
    from logs.readers import NotALog

    try:
        return runs_at(log, store), None
    except NotALog:
        if not log.endswith(".csv"):
            raise
        table = read_csv(Path(log))
        column = loss_column(table)
        if column is None:
            raise
        if table.shape[1] == 1:  # nothing there names a training run, so these are no final losses of several
            raise InputError(
                f"{log}: holds {column} alone: no column counts its steps; add one called step"
            ) from None
        return [], table


def _print_all(document: dict[str, Any]) -> None:
    for run in document["runs"]:
        _print_one(run)
    for batch in document["shared_batches"]:
        print(
            f"step {batch['step']:,}: this batch, not this run; it stands out in {', '.join(batch['runs'])}"
        )


def _print_one(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    verdict = document["verdict"]
    console.print(
        Text.assemble(
            (f"{document['run']}: ", "bold"),
            (verdict, f"bold {STYLES[verdict]}"),
            f". {_sentence(document['says'])}",
        )
    )
    by_kind: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in document["findings"]:
        by_kind.setdefault((finding["severity"], finding["kind"]), []).append(finding)
    advised: set[str] = set()
    for (severity, kind), findings in by_kind.items():
        _print_kind(console, severity, findings, with_advice=kind not in advised)
        advised.add(kind)
    if document["phases"]:
        told = ", ".join(f"{p['name']} {p['first_step']:,}-{p['last_step']:,}" for p in document["phases"])
        console.print(f"\nPhases: {told}", soft_wrap=True)
    _print_reference(console, document)


def _print_kind(console: Any, severity: str, findings: list[dict[str, Any]], with_advice: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    first = findings[0]
    times = f" ({len(findings)} of them)" if len(findings) > 1 else ""
    console.print()
    console.print(
        Text.assemble((f"{severity}: ", STYLES.get(severity, "yellow")), (first["title"] + times, "bold"))
    )
    for finding in findings[:MOST_ALIKE]:
        console.print(
            Padding(Text(f"{_when(finding)}{_sentence(finding['evidence']['says'])}"), (0, 0, 0, 2))
        )
    if len(findings) > MOST_ALIKE:
        steps = ", ".join(
            f"{f['onset_step']:,}" for f in findings[MOST_ALIKE:] if f["onset_step"] is not None
        )
        console.print(Padding(Text(f"Also at steps {steps}."), (0, 0, 0, 2)))
    if not with_advice:
        return
    if severity != "info":
        console.print(Padding(Text("Check, in this order:"), (0, 0, 0, 2)))
        for number, cause in enumerate(first["causes"], 1):
            console.print(Padding(Text(f"{number}. {cause}"), (0, 0, 0, 4)))
    console.print(Padding(Text(f"Try first: {first['try_first']}"), (0, 0, 0, 2)))


def _when(finding: dict[str, Any]) -> str:
    onset, end = finding["onset_step"], finding["end_step"]
    if onset is None:
        return ""
    return f"Step {onset:,}: " if end is None or end <= onset else f"Steps {onset:,} to {end:,}: "


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _print_reference(console: Any, document: dict[str, Any]) -> None:
    """The band of the public runs, and the score that others report."""
    from rich.table import Table

    reference = document["reference"]
    if reference and reference["measures"]:
        table = Table(
            "measure",
            "this run",
            "public runs",
            "within",
            title="Beside healthy public runs",
            title_justify="left",
        )
        for m in reference["measures"]:
            band = f"{m['low']:.3g} ({m['lowest_run']}) to {m['high']:.3g} ({m['highest_run']})"
            table.add_row(m["means"], f"{m['value']:.3g}", band, "yes" if m["inside"] else "no")
        console.print()
        console.print(table)
    score = document["six_sigma"]
    if score and score["share"] is not None:
        note = "" if score["comparable"] else (
            f"; every {score['every_kth_step']}th step is logged: not comparable with scores of full logs"
        )  # fmt: skip
        console.print(
            f"6-sigma-over-128 score: {score['share']:.3%} of {score['points']:,} points{note}",
            soft_wrap=True,
        )
