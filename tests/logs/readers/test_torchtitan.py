"""torchtitan: lines as it prints them."""

from pathlib import Path

from logs.ingest import read_logs

from .reading import quirks, read, series

TORCHTITAN = (
    "[rank0]:[titan] 2024-11-01 12:00:00,125 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1309  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.5030  \x1b[36mmemory:  1.50GiB(1.58%)  \x1b[34mtps: 12,345  "
    "\x1b[36mtflops: 1,234.56  \x1b[35mmfu: 12.50%\x1b[39m\n"
    "[rank0]:[titan] 2024-11-01 12:00:09,125 - root - INFO - step: 10  loss:  7.5000  memory:  1.50GiB(1.58%)"
    "  tps: 1,000  mfu: 12.50%\n"
    "[rank0]:[titan] 2024-11-01 12:00:10,125 - root - INFO - validate step: 10  loss:  7.2500  memory:  1.50GiB(1.58%)"
    "  tps: 9,999\n"
)


def test_torchtitan_console(tmp_path: Path) -> None:
    run = read(tmp_path / "log", TORCHTITAN, "torchtitan")
    assert series(run, "train/loss") == {1: 8.1309, 10: 7.5}
    assert series(run, "eval/validation/loss") == {10: 7.25}
    assert series(run, "tps per device") == {1: 12345, 10: 1000}
    assert "tokens_per_second" not in run.metrics  # `tps` is per device
    assert (series(run, "memory reserved")[1], run.units["memory reserved"]) == (1.5 * 2**30, "bytes")
    assert series(run, "mfu")[1] == 0.125
    assert run.table["wall_time"].tolist()[0] == 1730462400.125
    assert quirks(run) == {}


def test_tokens_of_a_log_that_counts_from_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(TORCHTITAN)
    (run,) = read_logs(tmp_path / "log", tokens_per_step=100).runs
    assert run.series("train/loss")["tokens"].tolist() == [100, 1000]
    assert any("tokens = step * 100" in text for text in run.inferred)
