"""`maquette fit`: a scaling law to a table or to stored runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish, runs_below, show
from experiments.configuration import InputError


def fit(
    law: Annotated[str, typer.Argument(help="The law, e.g. power-law or power-law-floor.")],
    table: Annotated[Path | None, typer.Argument(help="CSV table, one row per point.")] = None,
    runs: Annotated[
        str | None, typer.Option(help="Instead of a table: all stored runs below this name.")
    ] = None,
    n: Annotated[str | None, typer.Option(help="Column of parameters.")] = None,
    d: Annotated[str | None, typer.Option(help="Column of training tokens.")] = None,
    flops: Annotated[str | None, typer.Option(help="Column of training FLOPs.")] = None,
    loss: Annotated[str | None, typer.Option(help="Column of the loss.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Column that names the run; its rows are resampled together.")
    ] = None,
    drop_highest: Annotated[int, typer.Option(min=0, help="Set aside this many of the highest losses.")] = 0,
    floor: Annotated[float, typer.Option(min=0.0, help="Irreducible loss, taken as known.")] = 0.0,
    delta: Annotated[
        float | None, typer.Option(help="Huber's corner in log loss; default least squares.")
    ] = None,
    out: Out = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Fit a scaling law, with intervals, hold-out by scale, and a plain word on what is not identified."""
    from analysis.fit import fit_law, ladder_points, table_points
    from analysis.laws import find

    chosen, metric = find(law), None
    if table is not None and runs is not None:
        raise InputError("give a table or --runs NAME, not both")
    if delta is not None and delta <= 0:
        raise InputError(f"--delta {delta} must be above 0")
    if runs is not None:
        points, metric = ladder_points(runs_below(runs, store))
    elif table is None:
        raise InputError("give a CSV table, or --runs NAME for stored runs")
    else:
        columns = {"n": n, "d": d, "flops": flops, "loss": loss, "group": group}
        points = table_points(_read_csv(table), columns, chosen, str(table))
    document = fit_law(chosen, points, floor, delta, drop_highest) | {"metric": metric}
    finish(document, out, as_json, _print_fit)


def _read_csv(path: Path) -> Any:
    import pandas as pd

    try:
        return pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path}: not a readable CSV table ({error})") from None


def _print_fit(document: dict[str, Any]) -> None:
    rows = [
        [name, f"{p['value']:.6g}", *(f"{p[k][0]:.4g} to {p[k][1]:.4g}" for k in ("interval", "t_interval")),
         "yes" if document["identified"][name] else "no"]
        for name, p in document["parameters"].items()
    ]  # fmt: skip
    title = f"{document['law']}: {document['n_used']} of {document['n_points']} points, {document['status']}"
    show(title, ["parameter", "estimate", "95 % bootstrap", "95 % from residuals", "identified"], rows)
    held = document["holdout"]
    if held.get("reason") is None:
        print(
            f"Largest held out: predicted {held['predicted']:.5g}, was {held['actual']:.5g} "
            f"({100 * held['relative_error']:+.2f} %)"
        )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
