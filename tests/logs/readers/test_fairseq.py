"""fairseq: lines as its progress bar prints them."""

import json
import math
from pathlib import Path

import pytest

from .reading import quirks, read, series


def fairseq(tag: str, **values: object) -> str:
    return f"2024-02-29 08:00:28 | INFO | {tag} | {json.dumps({'epoch': 1, **values})}\n"


def test_fairseq(tmp_path: Path) -> None:
    log = "2024-02-29 07:59:08 | INFO | fairseq.trainer | NOTE: gradient overflow detected\n"
    log += fairseq(
        "train_inner", update=0.012, loss="21.229", moe_gate_loss="21.6108", inner_loss="20.917", ppl="1.98043e+06",
        wps="11941.9", num_updates="10", lr="7.33333e-06", gnorm="27.354", loss_scale="16",
    )  # fmt: skip
    log += fairseq(
        "valid", valid_loss="8.751", valid_nll_loss="8.101", valid_ppl="274.56", valid_num_updates="414"
    )
    log += fairseq("train", train_loss="9.5", train_ppl="724.08", train_num_updates="414")
    log += fairseq("train_inner", update=0.02, loss="inf", ppl="inf", num_updates="420")[:-20] + "\n"
    run = read(tmp_path / "log", log, "fairseq")
    assert series(run, "train/loss") == {10: pytest.approx(20.917 * math.log(2))}
    assert series(run, "eval/validation/loss") == {414: pytest.approx(8.101 * math.log(2))}
    assert series(run, "inner_loss") == {10: 20.917}
    assert (run.units["inner_loss"], run.units["loss"], run.units["train/loss"]) == (
        "bits/token",
        "unknown",
        "nats/token",
    )
    assert series(run, "train_loss") == {414: 9.5}  # the mean of an epoch, under its own name
    assert series(run, "grad_norm") == {10: 27.354}
    assert series(run, "tokens_per_second") == {10: 11941.9}
    assert any("train/loss = inner_loss * ln 2" in text for text in run.inferred)
    assert quirks(run)["broken_line"] == 1


def test_a_loss_of_fairseq_that_is_not_to_base_2_stays_as_it_is(tmp_path: Path) -> None:
    run = read(tmp_path / "log", fairseq("train_inner", loss="3.0", ppl="20.09", num_updates="10"), "fairseq")
    assert "train/loss" not in run.metrics
    assert (series(run, "loss"), run.units["loss"]) == ({10: 3.0}, "unknown")
