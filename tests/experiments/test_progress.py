"""Progress: what a log, a parent process and a terminal get to see."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import progress as module
from experiments.progress import Standing, progress, read_standing, readable_rate, readable_seconds


class Clock:
    """A clock that a test sets by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.delenv(module.PROGRESS_FILE, raising=False)
    return clock


def test_a_log_gets_a_line_every_ten_seconds_with_percent_and_eta(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("shards", total=100, unit="documents") as advance:
        for done in range(1, 51):
            clock.now += 1
            advance(done, note=f"loss {done}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "shards: 10 %, 10/100 documents, 1/s, 10 s, ETA 1:30 min, loss 10"
    assert [line.split(",")[1] for line in lines] == [f" {n}/100 documents" for n in (10, 20, 30, 40, 50, 50)]


def test_a_resumed_step_is_not_credited_with_what_was_done_before(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("train", total=1000, unit="steps", start=900) as advance:
        clock.now += 20
        advance(920)
    assert "train: 92 %, 920/1000 steps, 1/s, 20 s, ETA 1:20 min" in capsys.readouterr().err


def test_the_rate_follows_the_present_speed(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("corpus", total=10_000, unit="files") as advance:
        clock.now += 1000
        advance(1)  # a slow start, such as a download
        for done in range(2, 1000):
            clock.now += 10
            advance(done * 10)
        assert "1/s" in capsys.readouterr().err.splitlines()[-1]


def test_a_parent_reads_the_state_from_the_file(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stage.json"
    monkeypatch.setenv(module.PROGRESS_FILE, str(path))
    assert read_standing(path) is None
    with progress("train", total=200, unit="steps") as advance:
        assert read_standing(path) == Standing("train", 0, 200, "steps", "", 0.0, None)
        clock.now += 10
        advance(50, note="loss 3.2")
        standing = read_standing(path)
        assert standing is not None
        assert (standing.done, standing.note, standing.percent, standing.eta) == (50, "loss 3.2", 25, 30.0)
    assert json.loads(path.read_text())["done"] == 50
    assert capsys.readouterr() == ("", "")
    assert [other.name for other in tmp_path.iterdir()] == ["stage.json"]


def test_a_parent_that_went_away_does_not_stop_the_work(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.PROGRESS_FILE, str(tmp_path / "gone" / "stage.json"))
    with progress("train", total=2, unit="steps") as advance:
        clock.now += 10
        advance(1)


def test_an_error_passes_through_and_nothing_claims_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        with progress("train", total=2, unit="steps") as advance:
            clock.now += 10
            advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "100 %" not in capsys.readouterr().err


def test_a_terminal_gets_a_bar_on_standard_error_and_nothing_on_standard_output() -> None:
    code = (
        "from experiments.progress import progress\n"
        "with progress('shards', total=400, unit='documents') as advance:\n"
        "    advance(400, note='bytes per token 3.1')\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    environment.pop(module.PROGRESS_FILE, None)
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 100_000).decode())
    os.close(ours)
    assert (run.returncode, run.stdout) == (0, b"")
    assert "shards" in drawn
    assert "100%" in drawn
    assert "bytes per token 3.1" in drawn


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_hundred_percent_means_all(done: int, total: int) -> None:
    percent = Standing("x", done, total, "steps", "", 1.0, None).percent
    assert (percent == 100) == (done >= total)
    assert 0 <= percent <= 100


@given(st.floats(0, 1e6))
def test_times_read_back(seconds: float) -> None:
    shown = readable_seconds(seconds)
    numbers = [int(part) for part in re.findall(r"\d+", shown)]
    unit = shown.split()[-1]
    if unit == "s":
        assert numbers == [round(seconds)]
    elif unit == "min":
        assert numbers[0] * 60 + numbers[1] == round(seconds)
    else:
        assert 0 <= round(seconds) - (numbers[0] * 3600 + numbers[1] * 60) < 60


@given(st.floats(1e-3, 1e11))
def test_rates_read_back_to_three_figures(rate: float) -> None:
    number, suffix = re.fullmatch(r"([\d.e+-]+)([kMG]?)/s", readable_rate(rate)).groups()  # type: ignore[union-attr]
    assert float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[suffix] == pytest.approx(rate, rel=0.0051)
