"""Megatron-LM, Megatron-DeepSpeed and GPT-NeoX: lines as they print them."""

import math
from pathlib import Path

import numpy as np
import pytest

from logs.schema import is_logged

from .reading import quirks, read, series

MEGATRON = (
    " [2024-05-01 00:00:{i:02d}] iteration {i:8d}/{n:8d} | consumed samples: {s:12d} | elapsed time per iteration"
    " (ms): {t:.1f} | learning rate: {lr:.6E} | global batch size: {b:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
    " grad norm: {g:.3f} | number of skipped iterations: {z:3d} | number of nan iterations: {z:3d} |"
)
MEGATRON_EVAL = (
    " validation loss at iteration {i} on validation set |"
    " lm loss value: {loss:.6E} | lm loss PPL: {ppl:.6E} | "
)


def megatron(i: int, loss: float | None = None) -> str:
    values = {"s": i * 512, "t": 3000.5 + i, "lr": 1e-4 * i, "b": 512, "g": 0.5 + i, "z": 0, "n": 60}
    return MEGATRON.format(i=i, loss=loss or 10 / i, **values)


def test_megatron_lm(tmp_path: Path) -> None:
    lines = ["  seq_length ...................................... 4096", *map(megatron, range(1, 41))]
    lines.insert(21, MEGATRON_EVAL.format(i=20, loss=3.25, ppl=math.exp(3.25)))
    lines.append(" validation loss at the end of training for test data | lm loss value: 2.000000E+00 | ")
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    np.testing.assert_allclose(
        run.series("train/loss")["value"], [round(10 / i, 6) for i in range(1, 41)], rtol=2e-6
    )
    assert series(run, "eval/validation/loss") == {20: 3.25}
    assert series(run, "eval/test/loss") == {40: 2.0}
    assert quirks(run)["no_step"] == 1
    assert series(run, "step_time")[40] == 3040.5 / 1000
    logged = run.table[is_logged(run.table["samples"])]
    assert logged["samples"].tolist() == [512 * i for i in range(1, 41)]
    assert logged["tokens"].tolist() == [512 * 4096 * i for i in range(1, 41)]
    assert logged["wall_time"].iloc[0] == 1714521601  # 2024-05-01 00:00:01 UTC
    assert any("time zone" in text for text in run.inferred)
    assert any("consumed samples * 4096" in text for text in run.inferred)
    assert run.units["number of skipped iterations"] == "unknown"  # an unknown metric keeps its name
    assert run.table["step"].is_monotonic_increasing


@pytest.mark.parametrize("few", [5, 50])
def test_megatron_lines_read_at_once_and_one_by_one_are_equal(tmp_path: Path, few: int) -> None:
    """Below eight lines alike each is read by itself; either way the cells are the same."""
    whole = read(tmp_path / "whole", "\n".join(map(megatron, range(1, 51))), "megatron-text")
    alone = "\n".join(megatron(i) + "\nother text" * 3 for i in range(1, few + 1))
    part = read(tmp_path / "part", alone, "megatron-text")
    for column in part.table.columns[2:]:
        assert part.table[column].tolist() == whole.table[column].tolist()[:few], column


def test_megatron_restart_counts_from_its_checkpoint(tmp_path: Path) -> None:
    steps = [*range(1, 31), *range(21, 41)]
    lines = [megatron(i, 5.0 if k < 30 else 6.0) for k, i in enumerate(steps)]
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    assert len(run.table) == 50
    assert [segment.first_step for segment in run.segments] == [1, 21]
    loss = series(run, "train/loss")
    assert [loss[20], loss[21], loss[30], loss[40]] == [5, 6, 6, 6]
    assert quirks(run) == {"rewind": 1, "overlap": 10}


def test_ranks_that_talk_at_once_are_kept_apart(tmp_path: Path) -> None:
    lines: list[str] = []
    for i in range(1, 21):
        both = [f"{rank}: {megatron(i, 5.5 if rank and i == 7 else 5.0).lstrip()}" for rank in (0, 1)]
        lines += both if i % 2 else reversed(both)
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    assert len(run.table) == 20
    assert set(series(run, "train/loss").values()) == {5.0}
    assert series(run, "rank1/train/loss") == {7: 5.5}
    assert run.units["rank1/train/loss"] == "nats/token"
    (quirk,) = [quirk for quirk in run.quirks if quirk.kind == "interleaved_ranks"]
    assert (quirk.count, quirk.where) == (20, "lines 2, 3, 6, 7, 10 and 15 more")
    assert "1 are kept as rank<k>/<name>" in quirk.action
    assert "rewind" not in quirks(run)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_talk_at_once_without_labels_are_told_as_such(tmp_path: Path, ranks: int) -> None:
    lines = [megatron(i, 5.0 + rank / 8) for i in range(1, 21) for rank in range(ranks)]
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    assert len(run.table) == 20 * ranks
    (found,) = [quirk for quirk in run.quirks if quirk.kind == "interleaved_ranks"]
    assert found.count == 20 * (ranks - 1)
    assert f"stands {ranks} times in a row for 20 of 20 steps" in found.action
    assert "which is which cannot be told" in found.action
    assert found.where.startswith("lines 2, ")
    assert series(run, "train/loss")[7] == 5.0 + (ranks - 1) / 8


@pytest.mark.parametrize(
    ("steps", "change"),
    [
        ([i for i in range(1, 21) for _ in range(2)], 0.0),  # every line printed twice
        ([1, 2, 2, *range(3, 21)], 0.125),  # one step twice
        ([*range(1, 21), *range(1, 21)], 0.125),  # a restart
    ],
)
def test_other_repetitions_are_no_ranks(tmp_path: Path, steps: list[int], change: float) -> None:
    lines = [megatron(i, 5.0 + k * change) for k, i in enumerate(steps)]
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    assert "interleaved_ranks" not in quirks(run)


def test_megatron_lines_that_are_odd(tmp_path: Path) -> None:
    lines = [megatron(i) for i in range(1, 21)]
    lines.append(megatron(21)[:150] + megatron(22).lstrip())  # two ranks in one line
    lines.append(megatron(23).replace(f"{10 / 23:.6E}", "nan"))
    lines.append(
        " iteration       25/      60 | learning rate 1.5E-04 | lm loss 2.25 |"
    )  # as the first releases
    lines.append(megatron(26).replace("loss scale: 1.0", "loss scale: none"))
    lines.append(megatron(27)[:230])
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    loss, samples = series(run, "train/loss"), dict(zip(run.table["step"], run.table["samples"], strict=True))
    assert 21 not in loss
    assert (samples[21], samples[22]) == (21 * 512, 22 * 512)
    assert loss[22] == pytest.approx(10 / 22, rel=1e-6)
    assert math.isnan(loss[23])
    assert loss[25] == 2.25
    assert series(run, "lr")[25] == 1.5e-4
    found = quirks(run)
    assert (found["broken_line"], found["text_value"], found["non_finite"]) == (2, 1, 1)


def test_gpt_neox(tmp_path: Path) -> None:
    line = (
        " samples/sec: 12.500 | iteration       24/      60 | elapsed time per iteration (ms): 90.0 |"
        " learning rate: 1.234E-04 | approx flops per GPU: 40.1TFLOPS | lm_loss: 2.500000E+00 |"
    )
    run = read(tmp_path / "log", f"{line}\n", "megatron-text")
    assert series(run, "train/loss") == {24: 2.5}
    assert series(run, "approx flops per GPU (TFLOPS)") == {24: 40.1}
    assert series(run, "samples/sec") == {24: 12.5}
    assert series(run, "step_time") == {24: 0.09}
