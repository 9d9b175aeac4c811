"""`maquette mix`: a mixing law from small runs, its best mixture, and how it predicts other runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import AsJson, Out, finish, show
from experiments.configuration import InputError

LEAST_RESAMPLES = 40
"""Below, a 95 % interval would lie beyond all that was drawn."""

Shares = Annotated[list[str] | None, typer.Option(metavar="DOMAIN=SHARE", help="May be given several times.")]


def mix(
    weights: Annotated[Path, typer.Argument(help="CSV table: run, then the share of each training domain.")],
    losses: Annotated[Path, typer.Argument(help="CSV table: run, then each evaluation loss.")],
    target: Annotated[str, typer.Option(help="The loss to lower: its column, or a part of its name.")],
    law: Annotated[str, typer.Option(help="linear, exponential, bimix or lightgbm.")] = "exponential",
    test: Annotated[
        list[Path] | None,
        typer.Option(help="Weights of runs to score the law on; their losses follow with --test-losses."),
    ] = None,
    test_losses: Annotated[list[Path] | None, typer.Option(help="One for each --test, in order.")] = None,
    lowest: Shares = None,
    highest: Shares = None,
    resamples: Annotated[int, typer.Option(min=0, help="Refits behind the interval; 0 for none.")] = 100,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fit a mixing law to small runs and propose the mixture of the lowest loss, with an interval."""
    import numpy as np

    from analysis.mixing.law import find, fit
    from analysis.mixing.proposal import best_mixture, limits
    from analysis.mixing.score import intervals, score
    from analysis.mixing.table import in_order, read_mixtures

    found, table = find(law), read_mixtures(weights, losses)
    name, within = table.find_target(target), limits(table.domains, _shares(lowest), _shares(highest))
    if 0 < resamples < LEAST_RESAMPLES:
        raise InputError(f"--resamples {resamples}: at least {LEAST_RESAMPLES}, or 0 for no interval")
    if len(test or []) != len(test_losses or []):
        raise InputError("each --test needs its --test-losses")
    tests = [(w, read_mixtures(w, L)) for w, L in zip(test or [], test_losses or [], strict=True)]
    fitted = fit(law, table.weights, table.loss(name))
    best = best_mixture(fitted, within)
    interval = (
        intervals(law, table.weights, table.loss(name), best[None], resamples)[0].tolist()
        if resamples
        else None
    )
    nearest = float(np.abs(table.weights - best).sum(axis=1).min() / 2)
    document = {
        "law": law,
        "source": found.source,
        "target": name,
        "runs": len(table.runs),
        "parameters": {_named(key, table.domains): value for key, value in fitted.parameters.items()},
        "fit": score(fitted, table.weights, table.loss(name)),
        "tests": [
            {"table": str(path)} | score(fitted, in_order(t, table.domains, path), t.loss(name))
            for path, t in tests
        ],
        "proposal": {
            "mixture": dict(zip(table.domains, best.tolist(), strict=True)),
            "predicted": float(fitted.predict(best[None])[0]),
            "interval": interval,
            "best_run": float(table.loss(name).min()),
            "certain": fitted.convex,
            "distance_to_nearest_run": nearest,
        },
        "warnings": list(table.warnings),
    }
    finish(document, out, as_json, _print)


def _shares(given: list[str] | None) -> dict[str, float]:
    shares = {}
    for item in given or []:
        name, _, share = item.rpartition("=")
        if name in shares:
            raise InputError(f"{item}: {name} is given twice")
        try:
            shares[name] = float(share)
        except ValueError:
            raise InputError(f"{item}: expected DOMAIN=SHARE, such as code=0.3") from None
    return shares


def _named(parameter: str, domains: tuple[str, ...]) -> str:
    """`t[3]` as `t[code]`."""
    name, _, index = parameter.partition("[")
    return f"{name}[{domains[int(index[:-1])]}]" if index else name


def _print(document: dict[str, Any]) -> None:
    scored = [("the fitted runs", document["fit"]), *((t["table"], t) for t in document["tests"])]
    show(
        f"{document['law']} law for {document['target']}",
        ["on", "runs", "rank correlation", "mean error"],
        [
            [on, str(s["runs"]), "none" if s["spearman"] is None else f"{s['spearman']:.3f}",
             f"{s['mean_absolute_error']:.4f}"]
            for on, s in scored
        ],
    )  # fmt: skip
    proposal = document["proposal"]
    shares = sorted(proposal["mixture"].items(), key=lambda item: -item[1])
    show(
        "Proposed mixture",
        ["domain", "share"],
        [[name, f"{share:.3f}"] for name, share in shares if share > 5e-4],
    )
    spread = proposal["interval"]
    within = f" (95 %: {spread[0]:.4f} to {spread[1]:.4f})" if spread else ""
    print(f"Predicted loss {proposal['predicted']:.4f}{within}; the best run had {proposal['best_run']:.4f}.")
    print(
        f"{100 * proposal['distance_to_nearest_run']:.0f} % of it would have to move to reach the nearest run."
    )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
