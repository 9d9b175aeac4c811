"""Runs of either family leave weights that load into the same model; a resume checkpoint can be exported too."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from experiments.configuration import InputError
from replicas.cli import app
from replicas.data.mixture import PackedMixture
from replicas.data.shards import open_shards
from replicas.models.portable import load_export, read_weights
from replicas.published import Published, load_published
from replicas.training.checkpoints import ResumeCheckpoints
from replicas.training.evaluation import evaluate
from replicas.training.experiment import Experiment
from replicas.training.export import export
from replicas.training.train import train

RUNS: dict[str, dict[str, Any]] = {"marin-535b": {}, "delphi": {"shape": {"n_layers": 2}}}


@pytest.fixture(scope="module", params=RUNS)
def run(
    request: pytest.FixtureRequest,
    shards_folder: Path,
    tiny: Callable[..., Experiment],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Experiment, Path, Published]:
    """A finished run of twelve steps, and what it is a shrunk copy of."""
    folder = tmp_path_factory.mktemp(request.param)
    experiment = tiny(public_run=request.param, tokens=12 * 4 * 32, **RUNS[request.param])
    train(experiment, shards_folder, folder / "run", folder / "state")
    return experiment, folder / "run", load_published(request.param)


def test_the_kept_weights_are_those_of_the_last_evaluation(
    run: tuple[Experiment, Path, Published], shards_folder: Path
) -> None:
    experiment, folder, published = run
    model, shards = load_export(folder, published), open_shards(shards_folder)
    mixture = PackedMixture(shards, experiment.mixture, experiment.seq_len, experiment.batch_sequences, 0)
    batches = {
        domain: list(mixture.evaluation_batches(domain, 4, experiment.batch_sequences))
        for domain in mixture.domains
    }
    found = evaluate(model, batches, torch.tensor(shards.token_bytes), torch.device("cpu"))
    summary = json.loads((folder / "summary.json").read_text())
    assert found == {key: pytest.approx(value, rel=1e-6) for key, value in summary.items() if "eval/" in key}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 12
    assert losses[-1] < losses[0]


def test_facts_of_either_family(run: tuple[Experiment, Path, Published]) -> None:
    experiment, folder, published = run
    facts = json.loads((folder / "facts.json").read_text())
    dense = experiment.public_run == "delphi"
    assert facts["architecture"] == ("delphi" if dense else "marin_moe")
    assert facts["optimizer"] == ("adam + adamh" if dense else "adam + adamh + muonh")
    assert facts["drops_in_training"] is not dense
    assert facts["schedule"]["shape"] == ("wsd" if dense else "linear")
    if dense:
        assert facts["params_total"] == sum(p.numel() for p in load_export(folder, published).parameters())


def test_export_of_a_run_folder(run: tuple[Experiment, Path, Published], tmp_path: Path) -> None:
    _, folder, published = run
    result = CliRunner().invoke(app, ["export", str(folder), "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["dtype"] == "float32"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.safetensors", "config.json"}
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert document["parameters"] == sum(
        t.numel() for t in load_export(tmp_path / "out", published).state_dict().values()
    )


@pytest.fixture
def checkpoint(
    run: tuple[Experiment, Path, Published],
    shards_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The last checkpoint of the same run, saved after every step and set aside before the run ends."""
    aside = tmp_path / "step-00000012.ckpt"
    save = ResumeCheckpoints.save

    def save_and_keep(self: ResumeCheckpoints, trainer: Any) -> None:
        save(self, trainer)
        if trainer.global_step == 12:
            shutil.copyfile(self.folder / aside.name, aside)

    monkeypatch.setattr(ResumeCheckpoints, "save", save_and_keep)
    experiment = run[0].model_copy(update={"checkpoint_every_seconds": 1e-9})
    train(experiment, shards_folder, tmp_path / "again", tmp_path / "state")
    return aside


def test_export_of_a_checkpoint(
    run: tuple[Experiment, Path, Published], checkpoint: Path, tmp_path: Path
) -> None:
    """The same run's last step: the same files to the byte."""
    export(checkpoint, tmp_path / "out")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run[1] / name).read_bytes()
    whole = checkpoint.read_bytes()
    checkpoint.with_suffix(".sha256").write_text("of something else")
    with pytest.raises(InputError, match=r"step-00000012.ckpt: damaged, its content is not what was saved"):
        export(checkpoint, tmp_path / "other")
    checkpoint.with_suffix(".sha256").unlink()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"step-00000012.ckpt: damaged or no checkpoint"):
        export(checkpoint, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_exported(run: tuple[Experiment, Path, Published], tmp_path: Path) -> None:
    _, folder, _ = run
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(InputError, match="full: exists and is not an empty folder"):
        export(folder, tmp_path / "full")
    with pytest.raises(InputError, match="gone: no such run folder or checkpoint"):
        export(tmp_path / "gone", tmp_path / "out")
    with pytest.raises(InputError, match=r"full: no config.json with weights in it; give a run folder"):
        export(tmp_path / "full", tmp_path / "out")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match=r"other.ckpt: not a checkpoint of a training run"):
        export(tmp_path / "other.ckpt", tmp_path / "out")
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-1])
    with pytest.raises(InputError, match=r"model.safetensors: cut short or no safetensors file"):
        export(broken, tmp_path / "out")
    (broken / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors: no such file"):
        read_weights(broken)
    assert not (tmp_path / "out").exists()


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and gloo")
def test_shards_of_two_ranks(
    training: Callable[..., list[int]],
    tiny: Callable[..., Experiment],
    shards_folder: Path,
    tmp_path: Path,
) -> None:
    """A dense run on two ranks, interrupted, exported and gone on with, ends where one rank ends, clipped alike."""
    fields = {"public_run": "delphi", "shape": {"n_layers": 2}, "tokens": 8 * 4 * 32}
    machine = tiny().machine.model_dump() | {"strategy": "fsdp", "devices": 2}
    sharded = tmp_path / "sharded"
    sharded.mkdir()

    def describe(checkpoint_every_seconds: float) -> None:
        experiment = tiny(machine=machine, checkpoint_every_seconds=checkpoint_every_seconds, **fields)
        (sharded / "tiny.yaml").write_text(yaml.safe_dump(experiment.model_dump()))

    def saved() -> list[Path]:
        return sorted(path.with_suffix(".ckpt") for path in sharded.glob(".maquette/checkpoints/*/*.sha256"))

    describe(1e-9)
    stopped = training(sharded, signal.SIGINT, until=lambda: len(saved()) > 1, ranks=2)
    assert stopped[0] == 130, (sharded / "output.txt").read_text()
    export(saved()[-1], tmp_path / "exported")
    found = load_file(tmp_path / "exported" / "model.safetensors")
    stored = {"state_dict": {f"model.{name}": torch.zeros_like(tensor) for name, tensor in found.items()}}
    dcp.load(stored, checkpoint_id=saved()[-1], no_dist=True)
    assert all(torch.equal(tensor, stored["state_dict"][f"model.{name}"]) for name, tensor in found.items())
    assert load_export(tmp_path / "exported", load_published("delphi")).config.n_layers == 2

    describe(60.0)
    assert training(sharded, ranks=2) == [0, 0], (sharded / "output.txt").read_text()
    train(tiny(**fields), shards_folder, tmp_path / "alone", tmp_path / "state")
    ends = [
        load_file(folder / "model.safetensors") for folder in (sharded / "runs" / "tiny", tmp_path / "alone")
    ]
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=1e-4, atol=1e-5, msg=name)
