"""`maquette report`: the page, its pictures and its findings."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from analysis.commands.options import ROOT, AsJson, Store
from experiments.configuration import write_json


def report(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder with compare.json and, where made, fit.json, ablation.json, diagnosis.json, forecast.json, "
            "score.json; the page goes there."
        ),
    ] = Path("reports"),
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Write index.html, figures/*.png and findings.json from what the other commands found."""
    from analysis.report.documents import read_results
    from analysis.report.findings import findings
    from analysis.report.overlay import overlay_data
    from analysis.report.page import write_page
    from analysis.report.pictures import write_pictures
    from logs.store import read_run

    results = read_results(out)
    own = [read_run(pair["own"], store) for pair in results.comparison["pairs"]]
    public = read_run(results.comparison["public"], store)
    sentences = [finding.sentence for finding in findings(**asdict(results))]
    write_json(out / "findings.json", sentences)
    overlay = overlay_data(own, public, results.comparison, results.diagnosis)
    pictures = write_pictures(out / "figures", overlay, results.fit, results.ablation)
    write_page(out / "index.html", own, public, **asdict(results), overlay=overlay)
    if as_json:
        print(
            json.dumps(
                {
                    "report": str(out / "index.html"),
                    "findings": sentences,
                    "figures": [str(p) for p in pictures],
                },
                indent=2,
            )
        )
        return
    for i, sentence in enumerate(sentences, 1):
        print(f"{i}. {sentence}")
    print(f"report: {out / 'index.html'}")
