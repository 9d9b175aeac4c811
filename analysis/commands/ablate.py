"""`maquette ablate`: variants against a baseline."""

import sys
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish, runs_below, show
from experiments.configuration import InputError


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
    for run in runs_below(runs, store):
        variant, _, seed = run.name.removeprefix(f"{runs}/").rpartition("/seed-")
        if not variant or not seed.isdecimal():
            raise InputError(f"run {run.name} is not named {runs}/<variant>/seed-<n>")
        by_variant.setdefault(variant, {})[int(seed)] = run
    finish(ablate_runs(by_variant, baseline), out, as_json, _print_ablation)


def _print_ablation(document: dict[str, Any]) -> None:
    rows = [
        [mixture["mixture"], name, f"{effect['difference']:+.4f}", _range(effect["interval"]),
         _number(effect["minimum_detectable"]), effect["verdict"]]
        for mixture in document["mixtures"]
        for name, effect in [("overall", mixture["overall"]), *mixture["domains"].items()]
    ]  # fmt: skip
    correction = document["correction"]
    show(
        f"Bits per byte minus {document['baseline']} (below zero is better)",
        ["variant", "set", "difference", "95 %", "detectable", "verdict"],
        rows,
    )
    print(
        f"Verdicts: {correction['method']} at {correction['level']:g} over {correction['comparisons']} comparisons. "
        f"Detectable: smallest true difference that these seeds find in {100 * correction['power']:.0f} % of studies."
    )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)


def _range(interval: list[float] | None) -> str:
    return f"{interval[0]:+.4f} to {interval[1]:+.4f}" if interval else "unknown"


def _number(value: float | None) -> str:
    return f"{value:.4f}" if value is not None else "unknown"
