"""`maquette compare`: own runs over a public one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands.options import ROOT, AsJson, Out, Store, finish, show


def compare(
    own: Annotated[
        list[str],
        typer.Argument(metavar="OWN...", help="Stored runs, e.g. own/ladder/small, or paths of logs."),
    ],
    public: Annotated[
        str, typer.Option(help="The run to lay them over: a stored one or the path of a log.")
    ] = "marin-535b",
    x: Annotated[
        str | None,
        typer.Option(
            help="x axis: fraction, tokens, step, flops, tokens_per_parameter, integrated_lr. Default: what the "
            "runs allow."
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option(
            help="y axis: relative, loss, bpb, reducible, grad_norm, lr, or a metric that all runs log. Default: "
            "what the runs allow."
        ),
    ] = None,
    irreducible: Annotated[
        float | None,
        typer.Option(help="The term that --y reducible subtracts; default: fitted to each curve."),
    ] = None,
    out: Out = None,
    page: Annotated[Path | None, typer.Option(help="Write the overlay and the ledger as a page.")] = None,
    store: Store = ROOT,
    as_json: AsJson = False,
) -> None:
    """Lay own runs over a public run at matched progress; say what may be compared and what not."""
    from analysis.compare import compare as compare_runs
    from analysis.compare import with_recovered_length
    from analysis.report.page import write_page
    from logs.lookup import run_at, runs_at

    runs = [with_recovered_length(run) for name in own for run in runs_at(name, store)]
    reference = with_recovered_length(run_at(public, store))
    document = compare_runs(runs, reference, x, y, irreducible)
    if page is not None:
        document["report"] = str(page)
        write_page(page, runs, reference, document, x=document["x"], y=document["y"])
    finish(document, out, as_json, _print_comparison)


def _print_comparison(document: dict[str, Any]) -> None:
    """First what each pair is worth and why, then the numbers, then what limits them."""
    for pair in document["pairs"]:
        print(f"{pair['own']} over {pair['public']}")
        print(f"  {pair['view']['caption']}")
        for side in ("own", "public"):
            for said in pair["inferred"][side]:
                if "schedule" in said:
                    print(f"  {pair[side]}: {said}.")
    rows = [_numbers(pair) for pair in document["pairs"]]
    header = [
        "own",
        "shape distance (95 %)",
        "tokens to the same loss",
        "compute ratio",
        "learning rate",
        "gap at end",
    ]
    show(f"Over {document['public']}", header, rows)
    for group in document["seeds"]:
        if group["reason"] is None:
            lo, hi = group["interval"]
            print(
                f"{group['n']} seeds ({', '.join(group['runs'])}): shape distance {group['shape_distance']:.4f} "
                f"({lo:.4f} to {hi:.4f}, Student's interval of the mean)"
            )
    _print_reasons(document)
    _print_ledger(document)
    if document["report"]:
        print(f"page: {document['report']}")


def _numbers(pair: dict[str, Any]) -> list[str]:
    gap = pair["view"]["gap"]
    schedule = pair["schedule"]["own"]
    shape = schedule["shape"] or "not seen in the log"
    if schedule["decay_form"]:
        shape += f", {schedule['decay_form']} decay"
    off = schedule["departure_stretches"]
    if off:
        shape += f", off it from step {off[0]['first_step']:,}"
    return [
        pair["own"],
        _with_interval(pair["shape_distance"], pair["interval"], "{:.4f}"),
        _with_interval(*_ratio(pair["token_shift"]), "{:.3g}x"),
        _with_interval(*_ratio(pair["compute_ratio"]), "{:.3g}"),
        shape,
        _with_interval(gap["value"], gap["interval"], "{:+.4g}") if gap else "none",
    ]


def _ratio(found: dict[str, Any] | None) -> tuple[float | None, list[float] | None]:
    return (found["ratio"], found["interval"]) if found else (None, None)


def _with_interval(value: float | None, interval: list[float] | None, form: str) -> str:
    if value is None:
        return "none"
    text = form.format(value)
    return f"{text} ({form.format(interval[0])} to {form.format(interval[1])})" if interval else text


def _print_reasons(document: dict[str, Any]) -> None:
    for what, key in (
        ("shape distance", "shape_distance"),
        ("token shift", "token_shift"),
        ("compute ratio", "compute_ratio"),
    ):
        reasons: dict[str, list[str]] = {}
        for pair in document["pairs"]:
            if pair["reasons"][key]:
                reasons.setdefault(pair["reasons"][key], []).append(pair["own"])
        for reason, names in reasons.items():
            print(f"On the {what} of {', '.join(names)}: {reason}.")


def _print_ledger(document: dict[str, Any]) -> None:
    """Known differences as a table, gravest first; what is unknown or agrees in a line each."""
    from analysis.ledger import gravest_first

    for pair in document["pairs"]:
        rows = gravest_first(pair["ledger"])
        differ = [row for row in rows if row["same"] is False]
        table = [
            [row["aspect"], str(row["own"]), str(row["public"]), row["consequence"], row["why"]]
            for row in differ
        ]
        if table:
            header = ["what differs", "own", "public", "so", "why"]
            show(f"{pair['own']} and {pair['public']}", header, table)
        for what, same in (("Not known to agree", None), ("The same", True)):
            names = ", ".join(row["aspect"] for row in rows if row["same"] is same)
            if names:
                print(f"{what} for {pair['own']}: {names}.")
