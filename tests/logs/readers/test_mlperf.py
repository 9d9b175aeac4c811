"""MLPerf: events as its logger writes them."""

import json
from pathlib import Path

import pytest

from experiments.configuration import InputError

from .reading import quirks, read, series


def mllog(key: str, value: object, **metadata: object) -> str:
    event = {
        "namespace": "",
        "time_ms": 1778657049081,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
    }
    return f"0: :::MLLOG {json.dumps(event | {'metadata': {'file': 'a.py', 'lineno': 1} | metadata})}\n"


def test_mlperf(tmp_path: Path) -> None:
    head = mllog("submission_benchmark", "llama31_8b") + mllog("global_batch_size", 32) + mllog("seed", 7)
    rows = mllog("train_loss", 11.846, samples_count=0, lr=3.125e-06) + mllog(
        "eval_accuracy", 3.29, samples_count=184320
    )
    run = read(tmp_path / "log", "text\n" + head + rows + ":::MLLOG {broken\n", "mlperf")
    assert series(run, "eval/validation/loss") == {5760: 3.29}
    assert (series(run, "train/loss"), series(run, "lr")) == ({0: 11.846}, {0: 3.125e-06})
    assert run.table["samples"].tolist() == [0, 184320]
    assert run.table["wall_time"].tolist() == [1778657049.081] * 2
    assert (run.facts.batch_sequences, run.facts.seed) == (32, 7)
    assert any("step = samples // 32" in text for text in run.inferred)
    assert any("is its validation loss" in text for text in run.inferred)
    assert quirks(run)["broken_line"] == 1


def test_the_accuracy_of_mlperf_bert_is_an_accuracy(tmp_path: Path) -> None:
    log = mllog("submission_benchmark", "bert") + mllog("eval_accuracy", 0.72, step_num=100)
    run = read(tmp_path / "log", log, "mlperf")
    assert run.units["eval/validation/accuracy"] == "accuracy"
    with pytest.raises(InputError, match=r"line 1: counts samples.*global_batch_size"):
        read(tmp_path / "log", mllog("eval_accuracy", 0.72, samples_count=100), "mlperf")
