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
    show(
        f"Bits per byte minus {document['baseline']}",
        ["variant", "set", "difference", "95 %", "verdict"],
        rows,
    )
    for warning in document["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)
