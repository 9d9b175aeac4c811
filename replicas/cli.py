"""`maquette count`, `plan` and `export`: what a published run is, what it becomes at another width, its weights."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()

Run = Annotated[str, typer.Argument(help="Published run, e.g. marin-535b.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]


@app.command()
def count(
    run: Run,
    width: Annotated[int | None, typer.Option(help="Width of a shrunk copy; default: as published.")] = None,
    build: Annotated[bool, typer.Option("--build", help="Also build it, without memory, and count.")] = False,
    as_json: AsJson = False,
) -> None:
    """Count parameters and training operations, as the team that published the run counts them."""
    from replicas.count import count as count_run
    from replicas.count import count_built
    from replicas.plan import shrink
    from replicas.published import load_published

    published = load_published(run)
    document = count_run(published, width)
    if build:
        document |= count_built(published, shrink(published, document["width"]).config)
    if as_json:
        print(json.dumps(document, indent=2))
        return
    rows = [(key, value) for key, value in document.items() if isinstance(value, int)]
    _table(f"{published.title}, width {document['width']}", rows)
    if build:
        _table("Built and counted: in the published totals", list(document["counted"].items()))
        _table("Built and counted: apart from them", list(document["apart"].items()))


@app.command()
def plan(
    run: Run,
    width: Annotated[int, typer.Option(help="Width of the shrunk copy.")],
    tokens: Annotated[int | None, typer.Option(help="Token budget, not the published multiple.")] = None,
    as_json: AsJson = False,
) -> None:
    """Shrink a published run to another width; set batch, steps and learning rates by its own laws."""
    from replicas.plan import plan as plan_run
    from replicas.published import load_published

    published = load_published(run)
    document = plan_run(published, width, tokens).to_json()
    if as_json:
        print(json.dumps(document, indent=2))
        return
    rows = [(key, value) for key, value in document.items() if isinstance(value, int | float | None)]
    _table(f"{published.title}, at width {width}", rows)
    print("Kept: " + "; ".join(document["ratios_kept"]))
    if document["ratios_changed"]:
        from rich.console import Console
        from rich.table import Table

        table = Table("changed", "published", "here", "why")
        for change in document["ratios_changed"]:
            table.add_row(change["name"], change["published"], change["here"], change["why"])
        Console().print(table)
    for field, doubt in document["uncertain"].items():
        print(f"Uncertain in the source, {field}: {doubt}")


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="Run folder, or checkpoint step-<n>.ckpt of a running one.")],
    out: Annotated[Path, typer.Option(help="New folder for model.safetensors and config.json.")],
    as_json: AsJson = False,
) -> None:
    """Write the weights of a run under the public names, for other tools to load."""
    from replicas.training.export import export as export_weights

    document = export_weights(source, out)
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        print(
            f"{out}: {document['tensors']} tensors, {document['parameters']:,} numbers, {document['dtype']}"
        )


def _table(title: str, rows: list[tuple[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    print(title)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, value in rows:
        shown = "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
        table.add_row(key, shown)
    Console().print(table)
