"""`maquette forecast`: a run from its ladder and from its own past, against what has landed."""

import sys
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish, show

Rungs = Annotated[
    list[str] | None,
    typer.Option("--rungs", help="A smaller run of the ladder, once each; default: the published ladder."),
]
Metric = Annotated[str | None, typer.Option(help="The evaluation; default: the published ladder's.")]
Floor = Annotated[
    float | None, typer.Option(min=0.0, help="Pinned irreducible loss; default: the published ladder's.")
]
MethodName = Annotated[
    str, typer.Option("--method", help="public, floor, mix, anchored, curve or curve-ladder.")
]
Until = Annotated[int | None, typer.Option(min=0, help="Use nothing of the run's own past beyond this step.")]


def forecast(
    run: Annotated[str, typer.Argument(help="A stored run, e.g. marin-535b.")],
    at: Annotated[int | None, typer.Option(help="Only this step, zero-based as in the log.")] = None,
    method: MethodName = "public",
    until: Until = None,
    score: Annotated[
        bool, typer.Option("--score", help="Instead: score every method by leaving the future out.")
    ] = False,
    rungs: Rungs = None,
    metric: Metric = None,
    floor: Floor = None,
    out: Out = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Forecast a run from its scaling ladder, every 5 % of it, and set what has landed against it."""
    from analysis.forecast.document import ask, forecast_document, read_known
    from analysis.forecast.methods import find_method
    from analysis.forecast.scoring import score_document

    chosen, question = find_method(method), ask(run, rungs, metric, floor)
    known = read_known(question, store)
    if score:
        finish(score_document(known), out, as_json, _print_scores)
        return
    finish(forecast_document(question, known, chosen, at, until), out, as_json, _print_forecast)


def _print_forecast(document: dict[str, Any]) -> None:
    rows = [
        [
            f"{100 * point['fraction']:.1f} %",
            f"{point['step']:,}",
            f"{point['predicted']:.4f}",
            "none" if point["interval"] is None else "{:.4f} to {:.4f}".format(*point["interval"]),
            "" if point["landed"] is None else f"{point['landed']:.4f}",
            "" if point["error"] is None else f"{point['error']:+.4f}",
        ]
        for point in document["points"]
    ]
    title = f"{document['run']}, {document['metric']} in {document['unit']}, method {document['method']}"
    show(title, ["of the run", "step", "predicted", "95 %", "landed", "landed - predicted"], rows)
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)


def _print_scores(document: dict[str, Any]) -> None:
    header = ["known", "method", "n", "mean |error|", "mean error", "inside 95 %", "width"]
    for test, result in document["winners"].items():
        rows = [
            [
                score["known"],
                score["method"],
                str(score["n"]),
                f"{score['mean_abs']:.4f}",
                f"{score['bias']:+.4f}",
                "none" if score["inside"] is None else f"{100 * score['inside']:.0f} %",
                "none" if score["width"] is None else f"{score['width']:.4f}",
            ]
            for score in document["scores"]
            if score["test"] == test
        ]
        show(f"{test}, nats per token", header, rows)
        ranked = sorted(result["mean_abs"].items(), key=lambda item: item[1])
        print("Mean over what was known: " + ", ".join(f"{name} {error:.4f}" for name, error in ranked))
