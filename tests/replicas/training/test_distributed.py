"""Two gloo processes train the same curve as one, save what the other can load, and end together."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from replicas.training.experiment import Experiment

from ..data.conftest import ROOT

STEPS = 12
TIMED = {"wall_time", "tokens_per_second", "data_wait"}
SHAPE = {"n_experts": 4, "top_k": 2, "qb_bins": None, "capacity_factor": 1.0, "capacity_group_sequences": 2}
FSDP, DDP = {"strategy": "fsdp", "devices": 2}, {"strategy": "ddp", "devices": 2}
EP = FSDP | {"expert_parallel_degree": 2}

Rows = list[dict[str, Any]]
Train = Callable[..., list[int]]
Describe = Callable[..., Path]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork, SIGKILL and gloo"),
]


@pytest.fixture(scope="module")
def describe(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Describe:
    """Writes `tiny.yaml` into a new folder: a run that drops, in four capacity groups a batch."""

    def write(machine: dict[str, Any], shape: dict[str, Any] | None = None, **fields: Any) -> Path:
        experiment = tiny(
            shape={**SHAPE, **(shape or {})},
            batch_sequences=8,
            tokens=STEPS * 8 * 32,
            evaluation={"times": 2, "sequences_per_domain": 3},  # so that the ranks get different shares
            machine={**tiny().machine.model_dump(), **machine},
            **{"log_every_steps": 5, **fields},
        )
        folder = tmp_path_factory.mktemp("run")
        (folder / "tiny.yaml").write_text(yaml.safe_dump(experiment.model_dump()))
        return folder

    return write


@pytest.fixture(scope="module")
def trained(training: Train, describe: Describe) -> Callable[..., tuple[Rows, dict[str, torch.Tensor]]]:
    """A finished run's rows and weights; one trained before is not trained again."""
    known: dict[str, tuple[Rows, dict[str, torch.Tensor]]] = {}

    def run(
        machine: dict[str, Any], shape: dict[str, Any] | None = None
    ) -> tuple[Rows, dict[str, torch.Tensor]]:
        key = json.dumps([machine, shape])
        if key not in known:
            folder = describe(machine, shape)
            ranks = machine.get("devices", 1)
            assert training(folder, ranks=ranks) == [0] * ranks, (folder / "output.txt").read_text()
            known[key] = result(folder)
        return known[key]

    return run


def result(folder: Path) -> tuple[Rows, dict[str, torch.Tensor]]:
    """Rows of the finished run, but for what depends on the clock, and its weights with the router biases."""
    run = folder / "runs" / "tiny"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return (
        [{key: value for key, value in row.items() if key not in TIMED} for row in rows],
        load_file(run / "model.safetensors"),
    )


def assert_alike(found: tuple[Rows, Any], expected: tuple[Rows, Any]) -> None:
    """Every value of every row, and every weight and router bias after the run, to 1e-5."""
    for row, reference in zip(found[0], expected[0], strict=True):
        assert row == pytest.approx(reference, rel=1e-5, abs=1e-6), f"step {reference['step']}"
    assert found[1].keys() == expected[1].keys()
    for name, tensor in found[1].items():
        torch.testing.assert_close(
            tensor, expected[1][name], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


SPREADS: dict[str, dict[str, Any]] = {
    "ddp": DDP,
    "fsdp": FSDP,
    "expert parallel": EP,
    "micro-batches": {"micro_batches": 2},
    "micro-batches under fsdp, recomputed": FSDP | {"micro_batches": 2, "activation_checkpointing": True},
    "expert parallel in two pairs, recomputed": EP | {"devices": 4, "activation_checkpointing": True},
}


@pytest.mark.parametrize("spread", SPREADS)
def test_the_curve_is_that_of_one_process(trained: Any, spread: str) -> None:
    reference = trained({})
    rows, weights = reference
    assert len(rows) == STEPS + 3
    assert {"train/loss", "train/loss_bpb", "grad_norm", "router/entropy", "router/z_loss"} <= rows[0].keys()
    assert all(row["router/drop_fraction"] > 0.01 for row in rows if "train/loss" in row)
    assert rows[-1]["eval/mean/loss"] < rows[1]["eval/mean/loss"]
    assert any(tensor.abs().max() > 0.01 for name, tensor in weights.items() if name.endswith("router.bias"))
    assert_alike(trained(SPREADS[spread]), reference)


def test_the_histogram_of_margins_is_that_of_the_global_batch(trained: Any) -> None:
    shape = {"qb_bins": 50}
    assert_alike(trained(FSDP | {"micro_batches": 2}, shape), trained({}, shape))


def test_recomputation_changes_nothing(trained: Any) -> None:
    rows, weights = trained({"activation_checkpointing": True})
    expected_rows, expected = trained({})
    assert rows == expected_rows
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("machine", [{"strategy": "fsdp"}, EP], ids=["fsdp", "expert parallel"])
def test_bfloat16_computation_keeps_float32_masters(trained: Any, machine: dict[str, Any]) -> None:
    rows, weights = trained(machine | {"precision": "bf16-true"})
    losses, expected = (
        [row["train/loss"] for row in of if "train/loss" in row] for of in (rows, trained({})[0])
    )
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert losses == pytest.approx(expected, rel=0.01)
    assert losses != expected


def steps_saved(folder: Path) -> int:
    """Finished steps of the newest checkpoint, 0 if there is none."""
    names = [path.stem for path in folder.glob(".maquette/checkpoints/*/step-*.ckpt")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def checkpoints(folder: Path) -> Path:
    return next((folder / ".maquette" / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def interrupted(training: Train, describe: Describe) -> Callable[[dict[str, Any]], Path]:
    """A copy of the folder of a run that an interruption of its first rank stopped after some steps."""
    stopped: dict[str, Path] = {}

    def copy(machine: dict[str, Any]) -> Path:
        key = json.dumps(machine)
        if key not in stopped:
            folder, ranks = describe(machine, checkpoint_every_seconds=1e-9), machine.get("devices", 1)
            codes = training(folder, signal.SIGINT, until=lambda: steps_saved(folder) >= 3, ranks=ranks)
            assert codes == [130] + [0] * (ranks - 1), (folder / "output.txt").read_text()
            assert 3 <= steps_saved(folder) < STEPS
            assert len(list(checkpoints(folder).glob("step-*.ckpt"))) == 2
            stopped[key] = folder
        return shutil.copytree(stopped[key], stopped[key].with_name(f"copy-{time.monotonic_ns()}"))

    return copy


def go_on(folder: Path, training: Train, machine: dict[str, Any]) -> tuple[Rows, dict[str, torch.Tensor]]:
    """Finish the run in `folder` on another machine."""
    description = yaml.safe_load((folder / "tiny.yaml").read_text())
    description["machine"] |= {"strategy": "single", "devices": 1, "expert_parallel_degree": 1} | machine
    description["checkpoint_every_seconds"] = 60.0
    (folder / "tiny.yaml").write_text(yaml.safe_dump(description))
    before, ranks = checkpoints(folder), machine.get("devices", 1)
    assert training(folder, ranks=ranks) == [0] * ranks, (folder / "output.txt").read_text()
    assert not before.exists(), "it did not go on from the checkpoint"
    return result(folder)


@pytest.mark.parametrize("machine", [FSDP, EP], ids=["fsdp", "expert parallel"])
def test_sharded_checkpoints_resume_bit_for_bit(
    interrupted: Any, training: Train, trained: Any, machine: dict[str, Any]
) -> None:
    folder = interrupted(machine)
    assert all(path.is_dir() for path in checkpoints(folder).glob("step-*.ckpt"))
    rows, weights = go_on(folder, training, machine)
    expected_rows, expected = trained(machine)
    assert rows == expected_rows
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FSDP, {}),
        (FSDP, {"strategy": "fsdp"}),
        ({}, FSDP),
        (FSDP, DDP | {"micro_batches": 2}),
        (EP, {}),
        ({}, EP),
        (FSDP, EP | {"devices": 4}),
        (EP, FSDP),
    ],
    ids=[
        "fsdp 2 to 1",
        "fsdp 2 to fsdp 1",
        "1 to fsdp 2",
        "fsdp 2 to ddp 2 in micro-batches",
        "expert parallel to 1",
        "1 to expert parallel",
        "fsdp 2 to expert parallel in two pairs",
        "expert parallel to fsdp 2",
    ],
)
def test_a_run_goes_on_spread_in_another_way(
    interrupted: Any, training: Train, trained: Any, before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert_alike(go_on(interrupted(before), training, after), trained({}))


def test_of_a_damaged_shard_the_user_is_told_once(interrupted: Any, training: Train, trained: Any) -> None:
    folder = interrupted(FSDP)
    shard = sorted(checkpoints(folder).glob("step-*.ckpt"))[-1] / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    (folder / "output.txt").write_text("")
    rows, _ = go_on(folder, training, FSDP)
    assert rows == trained(FSDP)[0]
    assert (folder / "output.txt").read_text().count("damaged or half-written") == 1


def maquette(folder: Path, shards: Path, *launcher: str) -> subprocess.Popen[str]:
    """`maquette train tiny.yaml` as a user starts it, killed for certain after four minutes."""
    command = ["timeout", "-k", "1", "240", sys.executable, *launcher, "-m", "maquette", "train", "tiny.yaml"]
    return subprocess.Popen(
        [*command, "--shards", str(shards)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["lightning", "torchrun"])
def test_one_command_starts_all_ranks(
    describe: Describe, shards_folder: Path, trained: Any, launcher: tuple[str, ...]
) -> None:
    folder = describe(FSDP)
    process = maquette(folder, shards_folder, *launcher)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert said.count("run folder: runs/tiny") == 1
    assert said.count("100 %") == 1
    assert_alike(result(folder), trained({}))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a batch over three ranks": (
        DDP | {"devices": 3},
        {},
        "batch_sequences (8) does not divide over 3 devices x 1 micro-batches",
    ),
    "a cut capacity group": (DDP | {"micro_batches": 4}, {}, "no whole number of capacity groups of 2"),
    "three experts for two ranks": (
        EP,
        {"n_experts": 3},
        "n_experts (3) is not a multiple of `machine.expert_parallel_degree` (2)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_one_message(describe: Describe, training: Train, case: str) -> None:
    machine, shape, message = REFUSED[case]
    folder = describe({}, shape)
    description = yaml.safe_load((folder / "tiny.yaml").read_text())
    description["machine"] |= machine
    (folder / "tiny.yaml").write_text(yaml.safe_dump(description))
    assert training(folder) == [2]
    said = (folder / "output.txt").read_text()
    assert said.count("\n") == 1
    assert message in said
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_outlives_another(describe: Describe, training: Train, trained: Any, rank: int) -> None:
    """One is killed; the other ends by itself, and the next run goes on from what was saved."""
    folder = describe(FSDP, checkpoint_every_seconds=1e-9)
    codes = training(folder, signal.SIGKILL, until=lambda: steps_saved(folder) >= 3, ranks=2, rank=rank)
    assert codes.pop(rank) == -signal.SIGKILL
    assert codes[0] not in (0, -signal.SIGALRM)
    assert 3 <= steps_saved(folder) < STEPS
    rows, _ = go_on(folder, training, FSDP)
    assert rows == trained(FSDP)[0]
