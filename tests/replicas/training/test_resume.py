"""A run that is killed, and then interrupted, ends with the same log as one that was left alone."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicas.training.checkpoints import newest_checkpoint
from replicas.training.experiment import Experiment

STEPS, TIMED = 40, {"wall_time", "tokens_per_second", "data_wait"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")


def steps_saved(folder: Path) -> int:
    """Finished steps of the newest checkpoint, 0 if there is none."""
    names = [path.stem for path in folder.glob(".maquette/checkpoints/*/step-*.ckpt")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The log of the finished run, but for what depends on the clock."""
    text = (folder / "runs" / "tiny" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]


def test_the_log_is_the_same_after_a_kill_and_an_interruption(
    training: Callable[..., list[int]], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """One run saves hardly ever; the other after every step, and is stopped at a third and at two thirds."""
    left_alone, stopped = tmp_path / "left-alone", tmp_path / "stopped"
    for folder, seconds in ((left_alone, 1e9), (stopped, 1e-9)):
        evaluation = {"times": 5, "sequences_per_domain": 4}
        tokens = STEPS * 4 * 32
        experiment = tiny(
            tokens=tokens, evaluation=evaluation, checkpoint_every_seconds=seconds, log_every_steps=7
        )
        folder.mkdir()
        (folder / "tiny.yaml").write_text(yaml.safe_dump(experiment.model_dump()))

    assert training(left_alone) == [0], (left_alone / "output.txt").read_text()
    killed = training(stopped, signal.SIGKILL, until=lambda: steps_saved(stopped) >= STEPS // 3, rank=None)
    assert killed == [-signal.SIGKILL]
    killed_at = steps_saved(stopped)
    later = max(killed_at + 1, 2 * STEPS // 3)
    assert training(stopped, signal.SIGINT, until=lambda: steps_saved(stopped) >= later) == [130]
    interrupted_at = steps_saved(stopped)
    assert STEPS // 3 <= killed_at < interrupted_at < STEPS
    checkpoints = next((stopped / ".maquette" / "checkpoints").iterdir())
    assert newest_checkpoint(checkpoints) == checkpoints / f"step-{interrupted_at:08d}.ckpt"
    assert training(stopped) == [0], (stopped / "output.txt").read_text()

    rows = rows_of(left_alone)
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(STEPS))
    assert sum("eval/mean/loss" in row for row in rows) == 6
    assert {"train/loss", "grad_norm", "lr", "router/entropy", "router/drop_fraction"} <= set(rows[0])
    assert rows[-1]["eval/mean/loss"] < rows[1]["eval/mean/loss"]
    assert rows_of(stopped) == rows
    assert not list((stopped / ".maquette" / "checkpoints").iterdir())
