"""`maquette logs`: the catalogue of public runs, and logs in, shown and out."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.configuration import InputError
from logs.lookup import a_path
from logs.terminal import (
    add_row,
    extent,
    print_json,
    short_count,
    show,
    show_run,
    table_with,
    tell_left_alone,
    tell_unreadable,
)

ROOT = Path("logs/runs")

app = typer.Typer()
logs = typer.Typer(
    name="logs", help="Training logs: public ones and your own, read into one form.", no_args_is_help=True
)
app.add_typer(logs)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Root = Annotated[Path, typer.Option(parser=a_path, metavar="FOLDER", help="Folder in which runs are stored.")]
TokensPerStep = Annotated[int | None, typer.Option(help="For logs that count steps only.")]
Names = Annotated[
    Path | None,
    typer.Option(
        parser=a_path,
        metavar="FILE",
        help="YAML table of metric names, used before the built-in one; metric_names.yaml if there is one.",
    ),
]


def catalogue_rows(root: Path = ROOT) -> list[dict[str, Any]]:
    """The runs of the catalogue and the stored ones beside it, as `maquette logs list --json` prints them.

    A damaged run is left out and named on stderr.
    """
    from logs.catalogue import load_catalogue
    from logs.store import list_runs, read_run

    stored = list_runs(root, tell_unreadable)
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


def shown(name_or_path: str, root: Path = ROOT) -> dict[str, Any]:
    """The summaries of the runs of that name or in the logs at that path.

    Raises:
        InputError: neither a stored run nor a log.
    """
    from logs.lookup import runs_at
    from logs.summary import summarise

    return {"runs": [summarise(run) for run in runs_at(name_or_path, root)]}


def exported(name: str, kind: str, out: Path | None, raw: bool, root: Path = ROOT) -> dict[str, Any]:
    """Write a stored run to a file; what was written where."""
    from logs.export import export
    from logs.lookup import stored_run

    run = stored_run(name, root)
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
        print_json(rows)
        return
    table = table_with(
        "run", "here", "get by", "parameters", "active", "tokens", "steps", "metrics", "licence"
    )
    for row in rows:
        counts = [short_count(row[key]) for key in ("params_total", "params_active", "tokens")]
        steps = "" if row["steps"] is None else f"{row['steps']:,}"
        here = "yes" if row["local"] else "no"
        get = "pull" if row["pull"] else "file" if row["public"] else ""
        add_row(
            table,
            row["name"],
            here,
            get,
            *counts,
            steps,
            str(len(row["metrics"]) or ""),
            row["licence"] or "",
        )
    show(table)
    show("pull: maquette logs pull NAME; file: maquette logs list NAME says what to fetch and ingest")


def _list_one(name: str, as_json: bool, root: Path) -> None:
    """A public run with each fact and its source.

    Raises:
        InputError: the catalogue has none of that name; similar names are listed.
    """
    from logs.catalogue import lookup

    entry = lookup(name)
    if as_json:
        (row,) = [row for row in catalogue_rows(root) if row["name"] == entry.name]
        print_json([{**row, "entry": entry.model_dump(mode="json", exclude_none=True)}])
        return
    show(f"{entry.name}: {entry.address.value}")
    show(f"how to get it: {entry.how_to_get}")
    facts = table_with("fact", "value", "source")
    for key, fact in entry.facts.items():
        add_row(facts, key, f"{fact.value:,}" if type(fact.value) is int else str(fact.value), fact.source)
    for key, text in (("licence", entry.licence), ("status", entry.status)):
        if text is not None:
            add_row(facts, key, text.value, text.source)
    show(facts)
    runs = table_with("W&B run" if entry.wandb else "run", "from step", "to step", "source")
    for part in entry.segments:
        add_row(runs, part.run, f"{part.first:,}", "" if part.end is None else f"{part.end:,}", part.source)
    events = table_with("step", "kind", "event", "source")
    for event in entry.events:
        kind = f"{event.kind}, planned" if event.planned else event.kind
        add_row(events, f"{event.step:,}", kind, event.what, event.source)
    for table in (runs, events):
        if table.rows:
            show(table)


@logs.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(help="A public run of the catalogue that is on W&B.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Only what is new of a live run; may run from cron.")
    ] = False,
    cache: Annotated[
        Path, typer.Option(parser=a_path, metavar="FOLDER", help="Folder in which raw rows are kept.")
    ] = Path(".maquette/pulls"),
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
        print_json(result)
        return
    for run in result["runs"]:
        sampled = ", samples only" if run["sampled"] else ""
        show(
            f"{run['id']} ({run['state']}{sampled}): {run['new_rows']:,} new rows, up to step {run['last_step']:,}"
        )
    stored = result["run"]
    show(f"{name}: {stored['rows']:,} rows stored" if stored else f"{name}: nothing new")
    if result["note"]:
        show(result["note"])


@logs.command("ingest")
def ingest_command(
    path: Annotated[
        Path,
        typer.Argument(
            parser=a_path, metavar="PATH", help="A log, a run folder, a folder of them, or a quoted pattern."
        ),
    ],
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
    tell_left_alone(result["left_alone"])
    if as_json:
        print_json(result)
        return
    for run in result["runs"]:
        counts = (
            f"{len(run['segments'])} segments, {len(run['metrics'])} metrics, {len(run['quirks'])} quirks"
        )
        show(f"{run['name']}: {extent(run)}, {counts}")


@logs.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME-or-PATH", help="A stored run, or any log.")],
    root: Root = ROOT,
    as_json: Json = False,
) -> None:
    """Show what a run holds, what was odd in its log and what was done about it."""
    result = shown(name, root)
    if as_json:
        print_json(result)
        return
    for run in result["runs"]:
        show_run(run)


@logs.command("export")
def export_command(
    name: Annotated[str, typer.Argument(help="A stored run.")],
    kind: Annotated[str, typer.Option("--to", help="csv, parquet, jsonl, tensorboard or wandb.")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=a_path,
            metavar="PATH",
            help="File, or folder for tensorboard and wandb; NAME.<kind> if not given.",
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="All rows as logged, not one per step.")] = False,
    root: Root = ROOT,
    as_json: Json = False,
) -> None:
    """Write a stored run to a file for other tools."""
    result = exported(name, kind, out, raw, root)
    if as_json:
        print_json(result)
        return
    show(f"{result['path']}: {result['rows']:,} rows of {result['name']}")
