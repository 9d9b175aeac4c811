"""`maquette compare`, `fit`, `ablate` and `report`: from stored runs to numbers and the page."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.configuration import InputError, write_json

app = typer.Typer()

ROOT = Path("logs/runs")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]
Store = Annotated[Path, typer.Option("--store", help="Folder of the stored runs.")]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON document to this file.")]


@app.command()
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
    _finish(document, out, as_json, _print_comparison)


@app.command()
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
        points, metric = ladder_points(_runs_below(runs, store))
    elif table is None:
        raise InputError("give a CSV table, or --runs NAME for stored runs")
    else:
        columns = {"n": n, "d": d, "flops": flops, "loss": loss, "group": group}
        points = table_points(_read_csv(table), columns, chosen, str(table))
    document = fit_law(chosen, points, floor, delta, drop_highest) | {"metric": metric}
    _finish(document, out, as_json, _print_fit)


@app.command()
def ablate(
    runs: Annotated[
        str, typer.Argument(help="Where the runs are stored: NAME/<variant>/seed-<n>.")
    ] = "own/ablation",
    baseline: Annotated[str, typer.Option(help="The variant to compare with.")] = "balanced",
    out: Out = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Compare variants with a baseline, paired by seed, against the noise between seeds."""
    from analysis.ablation import ablate as ablate_runs

    by_variant: dict[str, dict[int, Any]] = {}
    for run in _runs_below(runs, store):
        variant, _, seed = run.name.removeprefix(f"{runs}/").rpartition("/seed-")
        if not variant or not seed.isdecimal():
            raise InputError(f"run {run.name} is not named {runs}/<variant>/seed-<n>")
        by_variant.setdefault(variant, {})[int(seed)] = run
    _finish(ablate_runs(by_variant, baseline), out, as_json, _print_ablation)


@app.command()
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


def _finish(document: dict[str, Any], out: Path | None, as_json: bool, show: Any) -> None:
    if out is not None:
        write_json(out, document)
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    show(document)


def _runs_below(prefix: str, store: Path) -> list[Any]:
    from logs.store import list_runs, read_run

    names = [name for name in list_runs(store) if name.startswith(f"{prefix.rstrip('/')}/")]
    if not names:
        raise InputError(f"no runs below {prefix!r} in {store}; train and ingest them first")
    return [read_run(name, store) for name in names]


def _read_csv(path: Path) -> Any:
    import pandas as pd

    try:
        return pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path}: not a readable CSV table ({error})") from None


def _show(title: str, header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


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
    _show(
        f"Over {document['public']}", ["own", "shape distance (95 %)", "token shift", "ledger", "note"], rows
    )
    reason = document["pairs"][0]["reasons"]["token_shift"]
    if reason:
        print(f"No token shift: {reason}.")
    if document["report"]:
        print(f"page: {document['report']}")


def _print_fit(document: dict[str, Any]) -> None:
    rows = [
        [name, f"{p['value']:.6g}", *(f"{p[k][0]:.4g} to {p[k][1]:.4g}" for k in ("interval", "t_interval")),
         "yes" if document["identified"][name] else "no"]
        for name, p in document["parameters"].items()
    ]  # fmt: skip
    title = f"{document['law']}: {document['n_used']} of {document['n_points']} points, {document['status']}"
    _show(title, ["parameter", "estimate", "95 % bootstrap", "95 % from residuals", "identified"], rows)
    held = document["holdout"]
    if held.get("reason") is None:
        print(
            f"Largest held out: predicted {held['predicted']:.5g}, was {held['actual']:.5g} "
            f"({100 * held['relative_error']:+.2f} %)"
        )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)


def _print_ablation(document: dict[str, Any]) -> None:
    rows = []
    for mixture in document["mixtures"]:
        for name, effect in [("overall", mixture["overall"]), *mixture["domains"].items()]:
            interval = (
                f"{effect['interval'][0]:+.4f} to {effect['interval'][1]:+.4f}"
                if effect["interval"]
                else "unknown"
            )
            rows.append(
                [mixture["mixture"], name, f"{effect['difference']:+.4f}", interval, effect["verdict"]]
            )
    _show(
        f"Bits per byte minus {document['baseline']}",
        ["variant", "set", "difference", "95 %", "verdict"],
        rows,
    )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
