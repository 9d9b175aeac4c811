"""What `maquette repro` shows while stages run: a bar per running stage, or plain lines in a log."""

import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TextIO

from experiments.progress import LINE_EVERY, Standing, readable_seconds, stage_bars, update_bar

DONE, UNCHANGED, FAILED, STOPPED = "done", "unchanged", "failed", "stopped"
"""The ways a stage ends."""


class BarBoard(AbstractContextManager["BarBoard"]):
    """One bar with percent, rate, elapsed time and ETA per running stage, on a terminal."""

    def __init__(self, stages: int) -> None:
        from rich.console import Console

        self._bars = stage_bars(Console(stderr=True))
        self._lines: dict[str, Any] = {}
        self._tally = _Tally(stages)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def started(self, stage: str) -> None:
        """A line for `stage`, moving but without numbers until it reports some."""
        self._lines[stage] = self._bars.add_task(stage, total=None, rate="", eta="", note="")

    def update(self, stage: str, standing: Standing) -> None:
        """Draw how far `stage` is."""
        update_bar(self._bars, self._lines[stage], standing, _title(stage, standing))

    def ended(self, stage: str, outcome: str, seconds: float) -> None:
        """Replace the line of `stage` by a sentence that stays."""
        self._bars.remove_task(self._lines.pop(stage))
        self.say(self._tally.sentence(stage, outcome, seconds))

    def say(self, text: str) -> None:
        """Print `text` above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)


class LineBoard(AbstractContextManager["LineBoard"]):
    """Plain lines: a stage starts, every 10 s how far it is, a stage ends."""

    def __init__(self, stages: int, stream: TextIO) -> None:
        self._stream = stream
        self._due: dict[str, float] = {}
        self._tally = _Tally(stages)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()

    def started(self, stage: str) -> None:
        """Say that `stage` starts."""
        self._due[stage] = time.monotonic() + LINE_EVERY
        self.say(f"{stage}: started")

    def update(self, stage: str, standing: Standing) -> None:
        """Say how far `stage` is, if the last such line is old enough."""
        if time.monotonic() >= self._due[stage]:
            self._due[stage] = time.monotonic() + LINE_EVERY
            self.say(Standing(**{**vars(standing), "label": _title(stage, standing)}).sentence())

    def ended(self, stage: str, outcome: str, seconds: float) -> None:
        """Say how `stage` ended."""
        self.say(self._tally.sentence(stage, outcome, seconds))

    def say(self, text: str) -> None:
        """Print `text`."""
        print(text, file=self._stream, flush=True)


class _Tally:
    """Counts finished stages for sentences such as `[3/16] shards: done after 12 s`."""

    def __init__(self, stages: int) -> None:
        self._done, self._stages = 0, stages

    def sentence(self, stage: str, outcome: str, seconds: float) -> str:
        self._done += outcome not in (FAILED, STOPPED)
        return f"[{self._done}/{self._stages}] {stage}: {outcome} after {readable_seconds(seconds)}"


Board = BarBoard | LineBoard


def board(stages: int) -> Board:
    """The board that suits standard error, for a run of `stages` stages."""
    return BarBoard(stages) if sys.stderr.isatty() else LineBoard(stages, sys.stderr)


def _title(stage: str, standing: Standing) -> str:
    return stage if standing.label == stage else f"{stage}: {standing.label}"
