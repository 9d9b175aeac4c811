"""Damaged checkpoints are passed over, old ones dropped, and the row log goes back with them."""

import json
import signal
import types
from pathlib import Path
from typing import Any

import pytest

from replicas.training.checkpoints import (
    ResumeCheckpoints,
    TrainingInterrupted,
    finished_steps,
    newest_checkpoint,
)
from replicas.training.run_folder import MetricLog


class Trainer(types.SimpleNamespace):
    """What `ResumeCheckpoints` asks of a trainer: a step, and to write something that depends on it."""

    is_global_zero = True

    def save_checkpoint(self, path: Path) -> None:
        path.write_bytes(b"weights after %d steps" % self.global_step)


def saved(folder: Path, *steps: int) -> ResumeCheckpoints:
    checkpoints = ResumeCheckpoints(folder, every_seconds=1e9)
    for step in steps:
        checkpoints.save(Trainer(global_step=step))
    return checkpoints


def test_no_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 9, 10, 100, 1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000100.ckpt",
        "step-00000100.sha256",
        "step-00001000.ckpt",
        "step-00001000.sha256",
    ]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert finished_steps(newest) == 1000


@pytest.mark.parametrize("damage", ["bit", "shortened", "empty", "no hash", "torn hash"])
def test_of_a_damaged_newest_checkpoint_the_user_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    saved(tmp_path, 10, 20)
    newest, stated = tmp_path / "step-00000020.ckpt", tmp_path / "step-00000020.sha256"
    content = newest.read_bytes()
    {
        "bit": lambda: newest.write_bytes(bytes([content[0] ^ 1]) + content[1:]),
        "shortened": lambda: newest.write_bytes(content[:-1]),
        "empty": lambda: newest.write_bytes(b""),
        "no hash": stated.unlink,
        "torn hash": lambda: stated.write_text(stated.read_text()[:30]),
    }[damage]()
    found = newest_checkpoint(tmp_path)
    assert found == tmp_path / "step-00000010.ckpt"
    said = capsys.readouterr().err
    assert f"{newest}: damaged or half-written" in said
    assert "step-00000010" not in said


def test_all_damaged_means_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 10, 20)
    for path in tmp_path.glob("*.ckpt"):
        path.write_bytes(b"")
    assert newest_checkpoint(tmp_path) is None
    said = capsys.readouterr().err
    assert said.count(": damaged or half-written") == 2
    assert "no intact checkpoint, training starts from step 0" in said


def test_a_half_written_file_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 10)
    (tmp_path / "step-00000020.part").write_bytes(b"half")
    (tmp_path / "step-00000020.sha256").write_text("written before the rename that never came\n")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000010.ckpt"
    assert not capsys.readouterr().err


def test_saving_waits_for_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    checkpoints = ResumeCheckpoints(tmp_path, every_seconds=5)
    for step, clock.now in enumerate((101.0, 104.9, 105.0, 109.9, 110.0), start=1):
        checkpoints(Trainer(global_step=step))
    assert [finished_steps(path) for path in sorted(tmp_path.glob("*.ckpt"))] == [3, 5]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_after_the_step_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with ResumeCheckpoints(tmp_path, every_seconds=1e9) as checkpoints:
        checkpoints(Trainer(global_step=1))
        signal.raise_signal(number)
        with pytest.raises(TrainingInterrupted) as stopped:
            checkpoints(Trainer(global_step=2))
    assert stopped.value.signal_number == number
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000002.ckpt"
    assert signal.getsignal(number) is before


class ShardedTrainer(Trainer):
    """Saves into a folder, as FSDP does."""

    def save_checkpoint(self, path: Path) -> None:
        path.mkdir()
        for rank in range(2):
            (path / f"__{rank}_0.distcp").write_bytes(b"shard of %d steps" % self.global_step)


@pytest.mark.parametrize("damage", ["bit", "missing", "renamed", "one too many"])
def test_a_folder_is_damaged_if_any_file_is(tmp_path: Path, damage: str) -> None:
    checkpoints = ResumeCheckpoints(tmp_path, every_seconds=1e9)
    for step in (5, 10, 15, 20):
        checkpoints.save(ShardedTrainer(global_step=step))
    paths = [tmp_path / "step-00000015.ckpt", tmp_path / "step-00000020.ckpt"]
    assert sorted(tmp_path.glob("*.ckpt")) == paths
    assert newest_checkpoint(tmp_path) == paths[1]
    shard = paths[1] / "__1_0.distcp"
    {
        "bit": lambda: shard.write_bytes(b"S" + shard.read_bytes()[1:]),
        "missing": shard.unlink,
        "renamed": lambda: shard.rename(paths[1] / "__2_0.distcp"),
        "one too many": lambda: (paths[1] / "__2_0.distcp").write_bytes(b""),
    }[damage]()
    assert newest_checkpoint(tmp_path) == paths[0]


def test_what_a_kill_left_of_a_folder_is_no_checkpoint_and_in_nobodys_way(tmp_path: Path) -> None:
    checkpoints = ResumeCheckpoints(tmp_path, every_seconds=1e9)
    checkpoints.save(ShardedTrainer(global_step=10))
    for name in ("step-00000020.part", "step-00000020.ckpt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_bytes(b"half")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000010.ckpt"
    checkpoints.save(ShardedTrainer(global_step=20))
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000020.ckpt"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_row_log_forgets_what_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricLog(path, first_step=0)
    log.write([{"step": step, "loss": 5.0 - step} for step in range(4)])
    log.write([{"step": 3, "eval": 1.0}])
    log.close()
    log = MetricLog(path, first_step=3)
    assert [row["step"] for row in rows_of(path)] == [0, 1, 2]
    log.write([{"step": 3, "loss": 7.0}])
    log.close()
    assert rows_of(path) == [{"step": step, "loss": 5.0 - step} for step in range(3)] + [
        {"step": 3, "loss": 7.0}
    ]


@pytest.mark.parametrize("torn", ['{"st', '{"step": 2, "loss": 1.5}', '{"step": 2, "loss": NaN'])
def test_the_row_log_forgets_a_torn_last_line(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "loss": NaN}\n{"step": 1, "loss": 2.5}\n' + torn)
    MetricLog(path, first_step=9).close()
    assert path.read_text() == '{"step": 0, "loss": NaN}\n{"step": 1, "loss": 2.5}\n'


def test_a_run_from_the_start_forgets_every_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "loss": 1.0}\n')
    MetricLog(path, first_step=0).close()
    assert not path.read_text()
