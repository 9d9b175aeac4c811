"""Levanter: events of its JSON logger, and lines of its progress bar."""

import json
import math
from pathlib import Path

import pytest

from .reading import quirks, read, series


def test_levanter_json_logger(tmp_path: Path) -> None:
    event = {"tracker": "json_logger", "event": "log", "step": 10, "metrics": {}}
    metrics = {"train/loss": 4.5, "throughput/mfu": 41.5, "eval/paloma/c4_en/bpb": 1.25, "eval/loss": 4.25}
    log = (
        "2026-01-01T00:00:00 - 0 - levanter.json_logger - INFO - "
        + json.dumps(event | {"metrics": metrics})
        + "\n"
    )
    log += json.dumps(event | {"step": None, "metrics": {"a": 1}}) + "\n"
    log += (
        json.dumps(
            event | {"step": 11, "metrics": {"train/loss": "NaN", "h": {"min": 0.5, "counts": [1, 2]}}}
        )
        + "\n"
    )
    log += "Progress on:train 11.0it/18.0it rate:34.5s/it remaining:04:01 elapsed:17:46 postfix:loss=15.5\n"
    run = read(tmp_path / "log", log, "levanter")
    assert series(run, "train/loss")[10] == 4.5
    assert math.isnan(series(run, "train/loss")[11])
    assert series(run, "mfu") == {10: pytest.approx(0.415)}
    assert run.units["eval/paloma/c4_en/loss_bpb"] == "bits/byte"
    assert series(run, "eval/validation/loss") == {10: 4.25}
    assert series(run, "h/min") == {11: 0.5}
    assert quirks(run)["no_step"] == quirks(run)["text_value"] == quirks(run)["progress_lines"] == 1


def test_levanter_progress_lines(tmp_path: Path) -> None:
    log = (
        "Progress on:train -/18\nProgress on:train 1.00it/18.0it rate:483.9s/it\n"
        "Progress on:train 11.0it/18.0it rate:34.5s/it remaining:04:01 elapsed:17:46 postfix:loss=15.5\n"
        "Progress on:train 4.77kit/5.00kit rate:1.1it/s remaining:04:01 elapsed:17:46 postfix:loss=3.25\n"
    )
    run = read(tmp_path / "log", log, "levanter")
    assert series(run, "train/loss") == {10: 15.5, 4769: 3.25}
    assert quirks(run)["rounded"] == 1
