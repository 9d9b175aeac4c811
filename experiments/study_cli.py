"""Commands that run one part of the study: `train`, and the stages of dvc.yaml that depend on its profile."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()
study = typer.Typer(
    name="study",
    help="Stages of dvc.yaml, at the size that params.yaml's profile says.",
    no_args_is_help=True,
)
app.add_typer(study)

Shards = Annotated[Path, typer.Option(help="Token shards to train on.")]


@app.command()
def train(
    experiment: Annotated[
        str, typer.Argument(help="A run of the study, e.g. ladder/small, or a YAML file that describes one.")
    ],
    shards: Shards = Path("data/shards"),
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/<name>.")] = None,
) -> None:
    """Train one run, from its last checkpoint if it has one, and leave a run folder."""
    from replicas.training.train import train as train_run

    chosen = _experiment(experiment)
    folder = out or Path("runs") / chosen.name
    if train_run(chosen, shards, folder):
        typer.echo(f"run folder: {folder}")


def _experiment(name_or_path: str) -> Any:
    from experiments.configuration import load
    from experiments.study import load_study
    from replicas.training.experiment import Experiment

    if name_or_path.endswith((".yaml", ".yml")):
        return load(name_or_path, Experiment)
    return load_study().experiment(name_or_path)


@study.command("corpus")
def corpus_stage(out: Path = Path("data/corpus")) -> None:
    """Fetch, verify and extract the text of every domain."""
    from experiments.study import load_study
    from replicas.data.corpus import build_corpus
    from replicas.data.sources import load_sources

    size = load_study().profile.corpus
    sources = load_sources("experiments/sources.yaml")
    build_corpus(sources, out, size.megabytes_per_domain, Path(".maquette/downloads"))


@study.command("shards")
def shards_stage(corpus: Path = Path("data/corpus"), out: Path = Path("data/shards")) -> None:
    """Hold out the evaluation split, train the tokenizer, write the token shards."""
    from experiments.study import load_study
    from replicas.data.shards import build_shards

    size = load_study().profile.shards
    build_shards(corpus, out, size.vocab_size, size.eval_fraction, size.tokenizer_megabytes)


@study.command("ingest")
def ingest_stage(runs: Path = Path("runs"), root: Path = Path("logs/runs")) -> None:
    """Store the log of every run of the study as `own/<name>`, and nothing else there."""
    from experiments.study import load_study
    from logs.ingest import read_logs
    from logs.store import write_runs

    readings = [read_logs(runs / name, f"own/{name}") for name in load_study().names()]
    stored = [run for reading in readings for run in reading.runs]
    write_runs(stored, root, below="own")
    for run in stored:
        typer.echo(f"stored {run.name}")


@study.command("preregister")
def preregister_stage(
    runs: Path = Path("runs"), out: Path = Path("reports/preregistrations/ladder-large.json")
) -> None:
    """Write down what the ladder's largest rung will reach, from the smaller ones, before it is trained."""
    from analysis.forecast.largest import preregister_largest
    from analysis.forecast.preregistration import write_preregistration
    from experiments.study import load_study
    from logs.ingest import read_logs

    loaded = load_study()
    planned = {name: loaded.planned_compute(name) for name in loaded.names() if name.startswith("ladder/")}
    largest = max(planned, key=lambda name: planned[name])
    smaller = [name for name in planned if name != largest]
    readings = [read_logs(runs / name, f"own/{name}") for name in smaller]
    rungs = [run for reading in readings for run in reading.runs]
    flops, steps = planned[largest]
    content = preregister_largest(rungs, f"own/{largest}", flops, steps)
    write_preregistration(out, content)
    typer.echo(content["claim"]["text"])
