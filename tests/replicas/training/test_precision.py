"""Precisions and compilation leave the curve where it was, and the master weights in float32."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from safetensors.torch import load_file
from torch import nn

from experiments.configuration import InputError
from replicas.training.experiment import Experiment
from replicas.training.train import train

Rows = list[dict[str, Any]]
Curve = Callable[..., Rows]


@pytest.fixture
def curve(tiny: Callable[..., Experiment], shards_folder: Path, tmp_path: Path) -> Curve:
    """Rows of a few steps of a model of two layers, trained in this process; its weights are float32."""

    def run(steps: int = 8, **machine: Any) -> Rows:
        experiment = tiny(
            shape={**tiny().shape, "n_layers": 2},
            tokens=steps * 4 * 32,
            evaluation={"times": 1, "sequences_per_domain": 4},
            machine={**tiny().machine.model_dump(), **machine},
        )
        assert train(experiment, shards_folder, tmp_path / "run", tmp_path / "state")
        weights = load_file(tmp_path / "run" / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
        return [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    return run


def losses(rows: Rows) -> list[float]:
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_bfloat16_autocast_is_near_float32(curve: Curve) -> None:
    rounded, exact = losses(curve(precision="bf16-mixed")), losses(curve())
    assert rounded == pytest.approx(exact, rel=0.01)
    assert rounded != exact


def test_compiled_blocks_compute_the_same(curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    compile_module = nn.Module.compile

    def note(module: nn.Module) -> None:
        compiled.append(module)
        compile_module(module, backend="aot_eager")  # traced as for any backend, without building C++

    monkeypatch.setattr(nn.Module, "compile", note)
    monkeypatch.setenv("CXX", sys.executable)  # is asked for, never run
    rows = curve(steps=2, compile=True)
    assert len(compiled) == 2
    assert losses(rows) == pytest.approx(losses(curve(steps=2)), rel=1e-4)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a GPU needs no C++ compiler")
def test_a_missing_compiler_is_said(curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InputError, match=r"`machine\.compile` needs a C\+\+ compiler .* no-such-compiler"):
        curve(steps=1, compile=True)


def test_dynamic_loss_scaling_finds_its_scale(
    curve: Curve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scale far too large for float16 is halved, one refused step after the other, until the gradients fit."""

    def scaled(**options: Any) -> lightning.Trainer:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        return lightning.Trainer(**{**options, "precision": None, "plugins": [plugin]})

    expected = losses(curve(steps=1))
    monkeypatch.setattr("replicas.training.train.Trainer", scaled)
    rows = curve(steps=24, precision="16-mixed", accelerator="auto")
    refused = [row["optimizer/skipped_steps"] for row in rows if "optimizer/skipped_steps" in row]
    assert refused == list(range(1, len(refused) + 1))
    assert 0 < len(refused) < 8
    assert capsys.readouterr().out.count("skipped: non-finite gradient of ") == len(refused)
    assert losses(rows)[0] == pytest.approx(expected[0], rel=0.01)
    assert losses(rows)[-1] < losses(rows)[0] - 0.15  # float32 falls by 0.41; batches differ by up to 0.05


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ({"precision": "16-mixed", "accelerator": "auto"}, "no 16-mixed on this device; choose bf16-mixed"),
        ({"accelerator": "cuda"}, "`machine` of run tiny: .*not available"),
    ],
)
def test_what_this_machine_has_not_is_said(curve: Curve, machine: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        curve(**machine)
