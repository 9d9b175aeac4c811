"""A tiny experiment on this project's own text."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replicas.data.corpus import build_corpus
from replicas.data.shards import build_shards
from replicas.training.experiment import Experiment

from ..data.conftest import ROOT, write_sources


@pytest.fixture(scope="session")
def shards_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of two domains, `code` and `prose`."""
    folder = tmp_path_factory.mktemp("training")
    build_corpus(
        write_sources(folder), folder / "corpus", megabytes_per_domain=0.2, downloads=folder / "none"
    )
    build_shards(folder / "corpus", folder / "shards", vocab_size=300, eval_fraction=0.1)
    return folder / "shards"


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    """Makes an experiment of width 16 with four experts; keywords change fields."""

    def make(**fields: Any) -> Experiment:
        defaults: dict[str, Any] = {
            "name": "tiny",
            "public_run": "marin-535b",
            "width": 16,
            "shape": {"n_experts": 4, "top_k": 2, "qb_bins": None},
            "seq_len": 32,
            "batch_sequences": 4,
            "tokens": 30 * 4 * 32,
            "mixture_name": "even",
            "mixture": {"code": 0.5, "prose": 0.5},
            "seed": 0,
            "evaluation": {"times": 4, "sequences_per_domain": 4},
            "machine": {
                "accelerator": "cpu",
                "devices": 1,
                "nodes": 1,
                "threads": 1,
                "precision": "32-true",
                "newton_schulz_precision": "float32",
            },
            "checkpoint_every_seconds": 60.0,
            "log_every_steps": 10,
        }
        return Experiment(**{**defaults, **fields})

    return make


@pytest.fixture(scope="session")
def training(shards_folder: Path) -> Iterator[Callable[..., list[int]]]:
    """Trains the `tiny.yaml` of a folder in processes of their own; returns the exit code of each rank.

    `until` is asked in short intervals; once it says so, `rank` gets the signal, or all ranks if that is None.
    """
    runs = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forked_training.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runs.stdin is not None
    assert runs.stdout is not None
    asked, answered = runs.stdin, runs.stdout

    def train(
        folder: Path,
        number: int | None = None,
        until: Callable[[], bool] = lambda: True,
        ranks: int = 1,
        rank: int | None = 0,
    ) -> list[int]:
        print(f"{folder}\t{shards_folder}\t{ranks}", file=asked, flush=True)
        pids = [int(pid) for pid in answered.readline().split()]
        if number is not None:
            patience = time.monotonic() + 240
            while not until():
                assert not (folder / "runs").exists(), "it ended before the signal came"
                assert time.monotonic() < patience, (folder / "output.txt").read_text()
                time.sleep(0.005)
            if rank is None:
                os.killpg(pids[0], number)
            else:
                os.kill(pids[rank], number)
        return [int(code) for code in answered.readline().split()]

    yield train
    asked.close()
    runs.wait()
    answered.close()
