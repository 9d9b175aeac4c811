"""`maquette logs`: the catalogue of public runs, and logs in, shown and out."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.configuration import InputError

ROOT = Path("logs/runs")

app = typer.Typer()
logs = typer.Typer(
    name="logs", help="Training logs: public ones and your own, read into one form.", no_args_is_help=True
)
app.add_typer(logs)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Root = Annotated[Path, typer.Option(help="Folder in which runs are stored.")]
TokensPerStep = Annotated[int | None, typer.Option(help="For logs that count steps only.")]
Names = Annotated[
    Path | None,
    typer.Option(
        help="YAML table of metric names, used before the built-in one; metric_names.yaml if there is one."
    ),
]


def catalogue_rows(root: Path = ROOT) -> list[dict[str, Any]]:
    """The runs of the catalogue and the stored ones beside it, as `maquette logs list --json` prints them.

    A damaged run is left out and named on stderr.
    """
    from logs.catalogue import load_catalogue
    from logs.store import list_runs, read_run

    stored = list_runs(root)
    rows = [
        {
            "name": entry.name,
            "title": entry.run_facts.title,
            "params_total": entry.run_facts.params_total,
            "params_active": entry.run_facts.params_active,
            "tokens": entry.run_facts.tokens_planned,
            "steps": entry.run_facts.steps_planned,
            "metrics": sorted(entry.metrics),
            "source": entry.address.value,
            "licence": entry.licence.value,
            "how_to_get": entry.how_to_get,
            "pull": entry.wandb is not None,
            "local": entry.name in stored,
            "public": True,
        }
        for entry in load_catalogue().values()
    ]
    for name in stored:
        if name in load_catalogue():
            continue
        try:
            run = read_run(name, root)
        except InputError as error:
            print(f"{name} is not listed: {error}", file=sys.stderr)
            continue
        rows.append(
            {
                "name": name,
                "params_total": run.facts.params_total,
                "params_active": run.facts.params_active,
                "tokens": run.facts.tokens_planned,
                "steps": run.facts.steps_planned,
                "metrics": sorted(run.metrics),
                "source": ", ".join(source.path for source in run.sources),
                "licence": next((source.licence for source in run.sources), None),
                "how_to_get": None,
                "pull": False,
                "local": True,
                "public": False,
            }
        )
    return rows


def ingested(
    path: Path, name: str | None, tokens_per_step: int | None, root: Path = ROOT, names: Path | None = None
) -> dict[str, Any]:
    """Store the logs under `path`; their summaries, and which files were left alone."""
    from logs.ingest import ingest
    from logs.summary import summarise

    reading = ingest(path, name, root, tokens_per_step, names)
    return {
        "runs": [summarise(run) for run in reading.runs],
        "left_alone": [{"file": file, "reason": reason} for file, reason in reading.left_alone],
    }


def runs_at(name_or_path: str, root: Path = ROOT) -> list[Any]:
    """A stored run, the stored runs `NAME/...`, or the runs in the logs under a path.

    Raises:
        InputError: neither a stored run nor a path.
    """
    from logs.ingest import read_logs
    from logs.store import list_runs, read_run

    stored = list_runs(root)
    names = [name for name in stored if name == name_or_path or name.startswith(f"{name_or_path}/")]
    if names:
        return [read_run(name, root) for name in names]
    if (Path(name_or_path) / "run.json").is_file() or not Path(name_or_path).exists():
        return [_stored(name_or_path, root)]
    return list(read_logs(name_or_path).runs)


def shown(name_or_path: str, root: Path = ROOT) -> dict[str, Any]:
    """The summaries of what `runs_at` finds.

    Raises:
        InputError: neither a stored run nor a path.
    """
    from logs.summary import summarise

    return {"runs": [summarise(run) for run in runs_at(name_or_path, root)]}


def _stored(name: str, root: Path) -> Any:
    """The stored run `name`.

    Raises:
        InputError: there is none; for a public run, how to get it is said.
    """
    from logs.catalogue import load_catalogue
    from logs.store import list_runs, read_run

    entry = load_catalogue().get(name)
    if entry and name not in list_runs(root) and not Path(name).exists():
        raise InputError(f"{name} is a public run that is not here yet. To get it: {entry.how_to_get}")
    return read_run(name, root)


def exported(name: str, kind: str, out: Path | None, raw: bool, root: Path = ROOT) -> dict[str, Any]:
    """Write a stored run to a file; what was written where."""
    from logs.export import export

    run = _stored(name, root)
    path = out or Path(f"{run.name.replace('/', '-')}.{kind}")
    return {"name": run.name, "to": kind, "path": str(path), "rows": export(run, kind, path, raw), "raw": raw}


@logs.command("list")
def list_command(
    name: Annotated[str | None, typer.Argument(help="Only this public run, with all that is known.")] = None,
    as_json: Json = False,
    root: Root = ROOT,
) -> None:
    """List the public runs of the catalogue and the stored ones."""
    if name is not None:
        _list_one(name, as_json, root)
        return
    rows = catalogue_rows(root)
    if as_json:
        _print_json(rows)
        return
    table = _table("run", "here", "get by", "parameters", "active", "tokens", "steps", "metrics", "licence")
    for row in rows:
        counts = [_short(row[key]) for key in ("params_total", "params_active", "tokens")]
        steps = "" if row["steps"] is None else f"{row['steps']:,}"
        here = "yes" if row["local"] else "no"
        get = "pull" if row["pull"] else "file" if row["public"] else ""
        table.add_row(
            row["name"], here, get, *counts, steps, str(len(row["metrics"]) or ""), row["licence"] or ""
        )
    _print(table)
    _print("pull: maquette logs pull NAME; file: maquette logs list NAME says what to fetch and ingest")


def _list_one(name: str, as_json: bool, root: Path) -> None:
    """A public run with each fact and its source.

    Raises:
        InputError: the catalogue has none of that name; similar names are listed.
    """
    from logs.catalogue import lookup

    entry = lookup(name)
    if as_json:
        (row,) = [row for row in catalogue_rows(root) if row["name"] == entry.name]
        _print_json([{**row, "entry": entry.model_dump(mode="json", exclude_none=True)}])
        return
    _print(f"{entry.name}: {entry.address.value}")
    _print(f"how to get it: {entry.how_to_get}")
    facts = _table("fact", "value", "source")
    for key, fact in entry.facts.items():
        facts.add_row(key, f"{fact.value:,}" if type(fact.value) is int else str(fact.value), fact.source)
    for key, text in (("licence", entry.licence), ("status", entry.status)):
        if text is not None:
            facts.add_row(key, text.value, text.source)
    _print(facts)
    runs = _table("W&B run" if entry.wandb else "run", "from step", "to step", "source")
    for part in entry.segments:
        runs.add_row(part.run, f"{part.first:,}", "" if part.end is None else f"{part.end:,}", part.source)
    events = _table("step", "kind", "event", "source")
    for event in entry.events:
        kind = f"{event.kind}, planned" if event.planned else event.kind
        events.add_row(f"{event.step:,}", kind, event.what, event.source)
    for table in (runs, events):
        if table.rows:
            _print(table)


@logs.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(help="A public run of the catalogue that is on W&B.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Only what is new of a live run; may run from cron.")
    ] = False,
    cache: Annotated[Path, typer.Option(help="Folder in which raw rows are kept.")] = Path(".maquette/pulls"),
    root: Root = ROOT,
    as_json: Json = False,
) -> None:
    """Fetch the full history of a public run from W&B, its forked runs spliced; again later: what is new.

    A second pull of the same run, started meanwhile, does nothing: it exits with 0 under --follow, else with 1.
    """
    from logs.pull import AlreadyRunningError, pull, pulled_json, stage_that_makes
    from logs.wandb_client import UnreachableError

    try:
        result = pulled_json(name, pull(name, root, cache, follow))
    except AlreadyRunningError as error:
        print(f"{error}; nothing done", file=sys.stderr)
        raise typer.Exit(0 if follow else 1) from None
    except UnreachableError as error:
        print(f"{error}. What came is kept; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(1) from None
    if result["run"] and (stage := stage_that_makes(root / name)):
        print(
            f"{root / name} is made by the stage {stage}, which would put its own tables there again; "
            f"to go on with what was pulled: dvc commit --force {stage}",
            file=sys.stderr,
        )
    if as_json:
        _print_json(result)
        return
    for run in result["runs"]:
        sampled = ", samples only" if run["sampled"] else ""
        _print(
            f"{run['id']} ({run['state']}{sampled}): {run['new_rows']:,} new rows, up to step {run['last_step']:,}"
        )
    stored = result["run"]
    _print(f"{name}: {stored['rows']:,} rows stored" if stored else f"{name}: nothing new")
    if result["note"]:
        _print(result["note"])


@logs.command("ingest")
def ingest_command(
    path: Annotated[Path, typer.Argument(help="A log, a run folder, a folder of them, or a quoted pattern.")],
    name: Annotated[
        str | None, typer.Option("--as", help="Store as NAME, or as NAME/<run> from a folder.")
    ] = None,
    tokens_per_step: TokensPerStep = None,
    names: Names = None,
    root: Root = ROOT,
    as_json: Json = False,
) -> None:
    """Read logs of any known format and store them in the canonical form."""
    result = ingested(path, name, tokens_per_step, root, names)
    if result["left_alone"]:
        print(
            f"{len(result['left_alone'])} files that are not training logs were left alone", file=sys.stderr
        )
    if as_json:
        _print_json(result)
        return
    for run in result["runs"]:
        steps = f"steps {run['first_step']:,}-{run['last_step']:,}"
        counts = (
            f"{len(run['segments'])} segments, {len(run['metrics'])} metrics, {len(run['quirks'])} quirks"
        )
        _print(f"{run['name']}: {run['rows']:,} rows, {steps}, {counts}")


@logs.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME-or-PATH", help="A stored run, or any log.")],
    root: Root = ROOT,
    as_json: Json = False,
) -> None:
    """Show what a run holds, what was odd in its log and what was done about it."""
    result = shown(name, root)
    if as_json:
        _print_json(result)
        return
    for run in result["runs"]:
        _show(run)


@logs.command("export")
def export_command(
    name: Annotated[str, typer.Argument(help="A stored run.")],
    kind: Annotated[str, typer.Option("--to", help="csv, parquet, jsonl, tensorboard or wandb.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File, or folder for tensorboard and wandb; NAME.<kind> if not given."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="All rows as logged, not one per step.")] = False,
    root: Root = ROOT,
    as_json: Json = False,
) -> None:
    """Write a stored run to a file for other tools."""
    result = exported(name, kind, out, raw, root)
    if as_json:
        _print_json(result)
        return
    _print(f"{result['path']}: {result['rows']:,} rows of {result['name']}")


def _show(run: dict[str, Any]) -> None:
    steps = f"steps {run['first_step']:,}-{run['last_step']:,}"
    _print(f"{run['name']} ({run['format']}): {run['rows']:,} rows, {steps}")
    if len(run["segments"]) > 1:
        segments = _table("segment", "from step", "last row")
        for segment in run["segments"]:
            segments.add_row(segment["id"], f"{segment['first_step']:,}", f"{segment['last_step']:,}")
        _print(segments)
    metrics = _table("metric", "unit", "points", "first", "last", "min", "max", "non-finite")
    for name, metric in run["metrics"].items():
        numbers = [_number(metric[key]) for key in ("first", "last", "min", "max")]
        metrics.add_row(name, metric["unit"], str(metric["n"]), *numbers, str(metric["non_finite"]))
    _print(metrics)
    if run["quirks"]:
        quirks = _table("quirk", "count", "where", "what was done")
        for quirk in run["quirks"]:
            quirks.add_row(quirk["kind"], str(quirk["count"]), quirk["where"], quirk["action"])
        _print(quirks)
    for statement in run["inferred"]:
        _print(f"inferred: {statement}")


def _table(*headers: str) -> Any:
    """A table whose first column, the names, is never cut."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, no_wrap=i == 0, overflow="fold")
    return table


def _short(count: int | None) -> str:
    """A count with three digits and its unit: 535B."""
    if count is None:
        return ""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _print(what: Any) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    Console(width=width, markup=False, highlight=False, soft_wrap=isinstance(what, str)).print(what)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))
