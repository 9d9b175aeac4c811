"""`maquette preregister`: a forecast on file before the run is there."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.forecast import Floor, MethodName, Metric, Rungs
from analysis.commands.options import ROOT, AsJson, Store, finish, runs_below
from experiments.configuration import InputError


def preregister(
    run: Annotated[str, typer.Argument(help="The run whose loss is forecast, e.g. marin-535b.")],
    at: Annotated[int | None, typer.Option(help="At which zero-based step; default: the last.")] = None,
    runs: Annotated[
        str | None, typer.Option(help="From all stored runs below this name, e.g. own/ladder, with --flops.")
    ] = None,
    flops: Annotated[
        float | None, typer.Option(min=1.0, help="With --runs: training FLOPs of the whole run.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="With --runs: steps of the whole run.")] = None,
    method: MethodName = "public",
    rungs: Rungs = None,
    metric: Metric = None,
    floor: Floor = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; default: preregistrations/<run>-step-<step>-<method>.json.")
    ] = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Write down a forecast before the run is there, so that it cannot be changed unnoticed; commit the file."""
    from analysis.forecast.document import preregister_forecast
    from analysis.forecast.largest import METRIC, preregister_largest
    from analysis.forecast.preregistration import FOLDER, write_preregistration

    if runs is None:
        if flops is not None or steps is not None:
            raise InputError("--flops and --steps belong to --runs; without it the run states them")
        content = preregister_forecast(run, at, method, rungs, metric, floor, store)
    else:
        if flops is None or steps is None:
            raise InputError("with --runs, say how large the run will be with --flops and --steps")
        if at is not None or rungs or floor is not None or method != "public":
            raise InputError("--at, --rungs, --floor and --method do not go with --runs, whose law is fixed")
        smaller = [one for one in runs_below(runs, store) if one.name != run]
        content = preregister_largest(smaller, run, flops, steps, metric or METRIC)
    name = f"{run.replace('/', '-')}-step-{content['claim']['step']}-{content['law']['name']}.json"
    path = out or FOLDER / name
    write_preregistration(path, content)
    finish(content, None, as_json, _print)
    print(f"written: {path}; commit it now, so that its date can be shown", file=sys.stderr)


def _print(content: dict[str, Any]) -> None:
    print(content["claim"]["text"])
    print(f"hash: {content['hash']}")
    for warning in content["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
