"""`maquette report`: the page, its pictures and its findings."""

import json
from pathlib import Path
from typing import Annotated

import typer

from analysis.commands.options import ROOT, AsJson, Store
from experiments.configuration import write_json


def report(
    out: Annotated[
        Path, typer.Option(help="Folder with compare.json, fit.json, ablation.json; the page goes there.")
    ] = Path("reports"),
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Write index.html, figures/*.png and findings.json from what compare, fit and ablate found."""
    from analysis.report.documents import read_document
    from analysis.report.findings import findings
    from analysis.report.overlay import overlay_data
    from analysis.report.page import write_page
    from analysis.report.pictures import write_pictures
    from logs.store import read_run

    comparison, fitted, ablation = (read_document(out, name) for name in ("compare", "fit", "ablation"))
    own = [read_run(pair["own"], store) for pair in comparison["pairs"]]
    public = read_run(comparison["public"], store)
    found = findings(comparison, fitted, ablation)
    write_json(out / "findings.json", found)
    pictures = write_pictures(out / "figures", overlay_data(own, public, comparison), fitted, ablation)
    write_page(out / "index.html", own, public, comparison, fitted, ablation, found)
    if as_json:
        print(
            json.dumps(
                {"report": str(out / "index.html"), "findings": found, "figures": [str(p) for p in pictures]},
                indent=2,
            )
        )
        return
    for i, finding in enumerate(found, 1):
        print(f"{i}. {finding}")
    print(f"report: {out / 'index.html'}")
