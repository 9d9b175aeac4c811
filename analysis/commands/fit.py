"""`maquette fit`: a scaling law to a table or to stored runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish, runs_below, show
from experiments.configuration import InputError


def fit(
    law: Annotated[str, typer.Argument(help="The law, e.g. power-law or chinchilla-approach-3.")],
    table: Annotated[Path | None, typer.Argument(help="CSV table, one row per point.")] = None,
    runs: Annotated[
        str | None, typer.Option(help="Instead of a table: all stored runs below this name.")
    ] = None,
    n: Annotated[str | None, typer.Option(help="Column of parameters.")] = None,
    d: Annotated[str | None, typer.Option(help="Column of training tokens.")] = None,
    flops: Annotated[str | None, typer.Option(help="Column of training FLOPs.")] = None,
    loss: Annotated[str | None, typer.Option(help="Column of the loss.")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Column that names the run; its rows are resampled together. `row`: each row is one."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=COLUMN for what else the law reads: lr, step, unique, experts, unit, ..."),
    ] = None,
    counting: Annotated[
        str | None,
        typer.Option(help="What N counts, e.g. active-no-embedding; `all` shows how the exponents move."),
    ] = None,
    drop_highest: Annotated[int, typer.Option(min=0, help="Set aside this many of the highest losses.")] = 0,
    floor: Annotated[float, typer.Option(min=0.0, help="Irreducible loss, taken as known.")] = 0.0,
    delta: Annotated[
        float | None, typer.Option(help="Huber's corner in log loss; default least squares.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=100, help="Resamples of the runs.")] = 4000,
    at: Annotated[
        list[str] | None, typer.Option("--predict", help="Predict a run, e.g. n=7e9,d=1.4e11.")
    ] = None,
    optimal_for: Annotated[
        list[float] | None, typer.Option(help="Best N and D for this many FLOPs; may be given several times.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw residuals and iso curves: .html or .png.")
    ] = None,
    out: Out = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Fit a scaling law, with intervals, hold-out by scale, and a plain word on what is not identified."""
    from analysis.laws import AllocationLaw, find_any

    chosen = find_any(law)
    if delta is not None and not 0 < delta < float("inf"):
        raise InputError(f"--delta {delta} must be above 0 and finite")
    columns = {"n": n, "d": d, "flops": flops, "loss": loss, "group": group} | _roles(column or [])
    if counting == "all":
        refused = {
            "--runs": runs,
            "--floor": floor,
            "--predict": at,
            "--optimal-for": optimal_for,
            "--plot": plot,
        }
        _refuse("--counting all compares fits", refused)
        rules = _by_counting(law, table, columns, delta, drop_highest)
        finish({"law": law, "counting": rules}, out, as_json, _print_counting)
        return
    points, metric = _points(chosen, table, runs, columns, counting, store)
    if drop_highest >= len(points):
        raise InputError(f"--drop-highest {drop_highest} leaves nothing of {len(points)} points")
    if isinstance(chosen, AllocationLaw):
        refused = {
            "--floor": floor,
            "--delta": delta,
            "--predict": at,
            "--optimal-for": optimal_for,
            "--plot": plot,
        }
        _refuse(f"{law} fits the best model size of each budget", refused)
        document = _allocation(chosen, points, drop_highest, resamples)
    else:
        options = (floor, delta, drop_highest, resamples)
        document = _law(chosen, points, options, at or [], optimal_for or [], plot)
    document |= {"metric": metric, "counting": counting or (f"as in column {n}" if n else "as given")}
    finish(document, out, as_json, _print_fit)


def _refuse(why: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value:
            raise InputError(f"{why}; {option} does not apply to it")


def _by_counting(
    law: str, table: Path | None, columns: dict[str, str | None], delta: float | None, drop_highest: int
) -> dict[str, Any]:
    from analysis.csv_table import read_csv
    from analysis.fit.by_counting import fit_by_counting
    from analysis.laws import find

    if table is None:
        raise InputError("give a CSV table with the columns of the counting rules")
    return fit_by_counting(find(law), read_csv(table), columns, str(table), delta, drop_highest)


def _points(
    law: Any,
    table: Path | None,
    runs: str | None,
    columns: dict[str, str | None],
    counting: str | None,
    store: Path,
) -> tuple[Any, str | None]:
    """Points for the fit, and the metric where they are of stored runs."""
    from analysis.csv_table import read_csv
    from analysis.fit.points import ladder_points, table_points

    if (table is None) == (runs is None):
        raise InputError("give a CSV table, or --runs NAME for stored runs, and not both")
    if runs is not None:
        _refuse("stored runs state active parameters", {"--counting": counting})
        return ladder_points(runs_below(runs, store))
    assert table is not None
    return table_points(read_csv(table), columns, law, str(table), counting), None


def _roles(pairs: list[str]) -> dict[str, str | None]:
    """`ROLE=COLUMN` of each."""
    roles: dict[str, str | None] = {}
    for pair in pairs:
        role, equals, column = pair.partition("=")
        if not (role and equals and column):
            raise InputError(f"--column {pair}: write ROLE=COLUMN, e.g. unique=unique_tokens")
        roles[role] = column
    return roles


def _allocation(law: Any, points: Any, drop_highest: int, resamples: int) -> dict[str, Any]:
    from analysis.fit.allocation import fit_allocation

    kept = points.loc[points["loss"].sort_values(kind="stable").index[: len(points) - drop_highest]]
    return fit_allocation(law, kept.sort_index(), resamples) | {"n_points": len(points)}


def _law(
    law: Any,
    points: Any,
    options: tuple[float, float | None, int, int],
    at: list[str],
    budgets: list[float],
    plot: Path | None,
) -> dict[str, Any]:
    import pandas as pd

    from analysis.fit.allocation import allocate
    from analysis.fit.estimate import describe, estimate
    from analysis.fit.figure import draw
    from analysis.fit.prediction import predict

    if plot is not None and plot.suffix not in (".html", ".png"):
        raise InputError(f"--plot {plot}: give a file that ends in .html or .png")
    wanted = [_values(text, law.variables) for text in at]
    if wanted and law.features is not None:
        raise InputError(f"{law.name} predicts from a whole schedule; --predict takes single numbers")
    fitted = estimate(law, points, *options)
    document = describe(fitted)
    if wanted:
        document["predictions"] = predict(fitted, pd.DataFrame(wanted))
    if budgets:
        document["optimal"] = allocate(fitted, budgets)
    if plot is not None:
        draw(fitted, plot)
    return document


def _values(text: str, variables: tuple[str, ...]) -> dict[str, float]:
    """`n=7e9,d=1e11` as numbers, one for each variable."""
    try:
        values = {name: float(number) for name, number in (part.split("=") for part in text.split(","))}
    except ValueError:
        values = {}
    if set(values) != set(variables) or not all(0 < value < float("inf") for value in values.values()):
        example = ",".join(f"{variable}=NUMBER" for variable in variables)
        raise InputError(f"--predict {text}: write {example}, each above 0")
    return values


def _print_counting(document: dict[str, Any]) -> None:
    names: list[str] = []
    rows = []
    for rule, result in document["counting"].items():
        values = result["parameters"] | {f"C^{k}": v for k, v in result.get("allocation", {}).items()}
        names = list(values)
        known = result["identified"]
        rows.append([rule, *(_cell(v, known.get(name, True)) for name, v in values.items())])
    show(f"{document['law']} by what N counts", ["N counts", *names], rows)


def _cell(parameter: dict[str, Any], known: bool) -> str:
    low, high = parameter["interval"]
    return (
        f"{parameter['value']:.4g} ({low:.3g} to {high:.3g})"
        if known
        else f"not identified ({low:.1g} to {high:.1g})"
    )


def _print_fit(document: dict[str, Any]) -> None:
    intervals = [
        k
        for k in ("interval", "bca_interval", "t_interval")
        if k in next(iter(document["parameters"].values()))
    ]
    heads = {"interval": "95 % bootstrap", "bca_interval": "BCa", "t_interval": "95 % from residuals"}
    rows = []
    for name, p in document["parameters"].items():
        known = document["identified"][name]
        value = f"{p['value']:.6g}" if known else "not identified"
        digits = 4 if known else 1
        rows.append([name, value, *(f"{p[k][0]:.{digits}g} to {p[k][1]:.{digits}g}" for k in intervals)])
    title = f"{document['law']}: {document['n_used']} of {document['n_points']} points, {document['status']}"
    show(title, ["parameter", "estimate", *(heads[k] for k in intervals)], rows)
    print(f"N counted: {document['counting']}. Objective {document['objective']:.7g}.")
    held = document["holdout"]
    if held.get("reason") is None:
        print(
            f"Largest held out: predicted {held['predicted']:.5g}, was {held['actual']:.5g} "
            f"({100 * held['relative_error']:+.2f} %), {held['extrapolation']:.3g}x beyond the fitted"
        )
    for row in document.get("predictions", []):
        low, high = row["interval"]
        print(f"Predicted {row['predicted']:.5g} ({low:.5g} to {high:.5g}), {row['distance']}")
    for row in document.get("optimal", []):
        parts = ", ".join(f"{k} {_range(row[k])}" for k in ("n", "d", "loss"))
        print(f"Best for {row['flops']:.3g} FLOPs: {parts}; {row['extrapolation']}")
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)


def _range(entry: dict[str, Any]) -> str:
    if entry["interval"] is None:
        return f"{entry['value']:.3g} (no interval: many resamples have no optimum)"
    return f"{entry['value']:.4g} ({entry['interval'][0]:.3g} to {entry['interval'][1]:.3g})"
