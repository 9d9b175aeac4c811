"""Progress of a long step: a bar with rate and ETA on a terminal, plain lines in a log, JSON for a parent.

A leaf of the project: every package may import it, it imports none of them.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

PROGRESS_FILE = "MAQUETTE_PROGRESS_FILE"
"""Environment variable: where a parent process wants the progress of this one as JSON."""

BAR_EVERY, LINE_EVERY, FILE_EVERY = 0.1, 10.0, 0.5
"""Least seconds between two updates of a bar, a log line and a progress file."""

_RATE_WINDOW = 32
"""How many past updates the rate is measured over, so that an early slow phase does not spoil the ETA."""


class Advance(Protocol):
    """Reports how much is done in all (not since the last call); `note` is shown behind the numbers."""

    def __call__(self, done: int, /, note: str = "") -> None: ...


@dataclass(frozen=True)
class Standing:
    """How far a step is: counts in `unit`, times in seconds; `rate` in units/s, None before it is known."""

    label: str
    done: int
    total: int
    unit: str
    note: str
    elapsed: float
    rate: float | None

    @property
    def percent(self) -> int:
        """Whole percent done, 100 only when everything is."""
        return 100 if self.done >= self.total else max(0, 100 * self.done // self.total)

    @property
    def eta(self) -> float | None:
        """Seconds to go at the present rate; None while the rate is unknown."""
        if self.done >= self.total:
            return 0.0
        return (self.total - self.done) / self.rate if self.rate else None

    def sentence(self) -> str:
        """One line for a log, such as `shards: 40 %, 400/1000 documents, 95/s, 4 s, ETA 6 s, loss 4.21`."""
        rate = f"{readable_rate(self.rate)}, " if self.rate else ""
        eta = f", ETA {readable_seconds(self.eta)}" if 0 < self.done < self.total else ""
        note = f", {self.note}" if self.note else ""
        counts = f"{self.done}/{self.total} {self.unit}"
        return f"{self.label}: {self.percent} %, {counts}, {rate}{readable_seconds(self.elapsed)}{eta}{note}"


@contextmanager
def progress(label: str, total: int, unit: str, start: int = 0) -> Iterator[Advance]:
    """Show how a step of `total` `unit`s gets on; yields `advance(done, note="")`, `done` counted from 0.

    A terminal gets a bar on standard error, anything else a plain line every 10 s; with the environment
    variable MAQUETTE_PROGRESS_FILE the state goes to that file as JSON instead. `start` is where a resumed
    step begins. `advance` may be called thousands of times per second.
    """
    show, close, every = _sink()
    began = time.monotonic()
    past: deque[tuple[float, int]] = deque([(began, start)], maxlen=_RATE_WINDOW)
    done, remark, due = start, "", began + every

    def standing(now: float, since: tuple[float, int]) -> Standing:
        seconds, units = now - since[0], done - since[1]
        rate = units / seconds if seconds > 0 and units > 0 else None
        return Standing(label, done, total, unit, remark, now - began, rate)

    def advance(reached: int, /, note: str = "") -> None:
        nonlocal done, remark, due
        done, remark = reached, note
        now = time.monotonic()
        if now >= due:
            due = now + every
            show(standing(now, past[0]))
            past.append((now, done))

    try:
        show(standing(began, past[0]))
        yield advance
        show(standing(time.monotonic(), (began, start)))
    finally:
        close()


def _sink() -> tuple[Callable[[Standing], None], Callable[[], None], float]:
    """What shows a standing, what ends the showing, and the least seconds between two showings."""
    path = os.environ.get(PROGRESS_FILE)
    if path:
        return lambda standing: write_standing(Path(path), standing), lambda: None, FILE_EVERY
    if sys.stderr.isatty():
        show, close = _bar()
        return show, close, BAR_EVERY
    return _line(sys.stderr), lambda: None, LINE_EVERY


def _line(stream: TextIO) -> Callable[[Standing], None]:
    def show(standing: Standing) -> None:
        if standing.elapsed > 0:  # a step has nothing to tell before it begins
            print(standing.sentence(), file=stream, flush=True)

    return show


def _bar() -> tuple[Callable[[Standing], None], Callable[[], None]]:
    from rich.console import Console

    bars = stage_bars(Console(stderr=True))
    task = bars.add_task("", total=None, rate="", eta="", note="")
    bars.start()
    return lambda standing: update_bar(bars, task, standing), bars.stop


def stage_bars(console: Any) -> Any:
    """A `rich.progress.Progress` with one line per step: bar, percent, rate, elapsed, ETA and note."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
        TextColumn("{task.fields[note]}", style="dim"),
        console=console,
        refresh_per_second=4,
    )


def update_bar(bars: Any, task: Any, standing: Standing, description: str | None = None) -> None:
    """Draw `standing` on the line `task` of `bars`, under its own label or `description`."""
    bars.update(
        task,
        description=description or standing.label,
        total=standing.total,
        completed=standing.done,
        rate=f"{readable_rate(standing.rate)} {standing.unit}" if standing.rate else "",
        eta=f"ETA {readable_seconds(standing.eta)}" if standing.done < standing.total else "",
        note=standing.note,
    )


def write_standing(path: Path, standing: Standing) -> None:
    """Replace the JSON file `path` by `standing`; a reader never sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(vars(standing)), encoding="utf-8")
        os.replace(beside, path)
    except FileNotFoundError:
        pass  # the parent that wanted to know has gone and taken its folder along: no reason to stop working


def read_standing(path: Path) -> Standing | None:
    """What `write_standing` left at `path`; None while nothing is there."""
    try:
        return Standing(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def readable_seconds(seconds: float | None) -> str:
    """`7 s`, `3:05 min`, `2:10 h`, or `?` where unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def readable_rate(rate: float | None) -> str:
    """Units per second with three figures: `0.25/s`, `31.2/s`, `4.56k/s`; empty where unknown."""
    if rate is None:
        return ""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= factor:
            return f"{rate / factor:.3g}{suffix}/s"
    return f"{rate:.3g}/s"
