"""`maquette compare`: own runs over a public one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish, show


def compare(
    own: Annotated[list[str], typer.Argument(metavar="OWN...", help="Stored runs, e.g. own/ladder/small.")],
    public: Annotated[str, typer.Option(help="The public run to lay them over.")] = "marin-535b",
    x: Annotated[
        str, typer.Option(help="First x axis: fraction, tokens, step, flops, tokens_per_parameter.")
    ] = "fraction",
    y: Annotated[str, typer.Option(help="First y axis: relative, loss, bpb, grad_norm, lr.")] = "relative",
    out: Out = None,
    page: Annotated[Path | None, typer.Option(help="Write the overlay and the ledger as a page.")] = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Lay own runs over a public run at matched progress; say what may be compared and what not."""
    from analysis.compare import compare as compare_runs
    from analysis.report.page import write_page
    from logs.store import read_run

    runs, reference = [read_run(name, store) for name in own], read_run(public, store)
    document = compare_runs(runs, reference)
    if page is not None:
        document["report"] = str(page)
        write_page(page, runs, reference, document, x=x, y=y)
    finish(document, out, as_json, _print_comparison)


def _print_comparison(document: dict[str, Any]) -> None:
    rows = []
    for pair in document["pairs"]:
        distance, reason = pair["shape_distance"], pair["reasons"]["shape_distance"]
        shown = (
            f"{distance:.4f} ({pair['interval'][0]:.4f} to {pair['interval'][1]:.4f})"
            if distance is not None
            else "none"
        )
        shift = f"{pair['token_shift']['ratio']:.3g}x" if pair["token_shift"] else "none"
        differ = sum(1 for row in pair["ledger"] if row["consequence"] != "comparable")
        rows.append(
            [pair["own"], shown, shift, f"{differ} of {len(pair['ledger'])} aspects differ", reason or ""]
        )
    show(
        f"Over {document['public']}", ["own", "shape distance (95 %)", "token shift", "ledger", "note"], rows
    )
    reason = document["pairs"][0]["reasons"]["token_shift"]
    if reason:
        print(f"No token shift: {reason}.")
    if document["report"]:
        print(f"page: {document['report']}")
