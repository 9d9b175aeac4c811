"""Commands of the data pipeline: `maquette corpus` and `maquette shards`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()


@app.command()
def corpus(
    sources: Annotated[Path, typer.Option(help="What to build it from.")] = Path("experiments/sources.yaml"),
    out: Annotated[Path, typer.Option(help="Folder to write; replaced whole.")] = Path("data/corpus"),
    megabytes_per_domain: Annotated[float, typer.Option(help="Most text per domain, in 10^6 bytes.")] = 4.0,
    downloads: Annotated[Path, typer.Option(help="Where packages are kept.")] = Path(".maquette/downloads"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Fetch the sources, verify them, and write the documents of every domain."""
    from replicas.data.corpus import build_corpus
    from replicas.data.sources import load_sources

    manifest = build_corpus(load_sources(sources), out, megabytes_per_domain, downloads)
    rows = [
        [
            name,
            f"{entry['documents']:,}",
            f"{entry['bytes'] / 1e6:.2f}",
            f"{sum(entry['dropped'].values()):,}",
        ]
        for name, entry in manifest["domains"].items()
    ]
    _show(manifest, as_json, f"Corpus in {out}", ["domain", "documents", "MB", "left out"], rows)


@app.command()
def shards(
    corpus: Annotated[Path, typer.Option(help="Corpus folder to read.")] = Path("data/corpus"),
    out: Annotated[Path, typer.Option(help="Folder to write; replaced whole.")] = Path("data/shards"),
    vocab_size: Annotated[int, typer.Option(help="Tokens in the vocabulary.")] = 1024,
    eval_fraction: Annotated[
        float, typer.Option(help="Part of each domain's bytes that is held out.")
    ] = 0.03,
    tokenizer_megabytes: Annotated[
        float, typer.Option(help="Text the tokenizer is trained on, 10^6 bytes.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Hold out the evaluation split, train the tokenizer on the rest, and write the token shards."""
    from replicas.data.shards import build_shards

    manifest = build_shards(corpus, out, vocab_size, eval_fraction, tokenizer_megabytes)
    rows = [
        [name, split, f"{part['documents']:,}", f"{part['tokens']:,}", f"{part['bytes_per_token']:.3f}"]
        for name, splits in manifest["domains"].items()
        for split, part in splits.items()
    ]
    _show(
        manifest, as_json, f"Shards in {out}", ["domain", "split", "documents", "tokens", "bytes/token"], rows
    )


def _show(
    manifest: dict[str, Any], as_json: bool, title: str, columns: list[str], rows: list[list[str]]
) -> None:
    if as_json:
        print(json.dumps(manifest))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}, {manifest['sha256'][:12]}")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
