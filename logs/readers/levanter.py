"""Reader of Levanter's console: its JSON logger and its progress lines.

`{"tracker": "json_logger", "event": "log", "step": 10, "metrics": {...}}` as
`src/levanter/tracker/json_logger.py` of stanford-crfm/levanter writes it, alone or behind the prefix of a
logger; and `Progress on:train 11.0it/18.0it rate:34.5s/it ... postfix:loss=15.5`, which tqdm_loggable prints
for `pbar_logger` in `src/levanter/callbacks/_metrics.py`. The bar counts the steps that are done and shortens
the count to three digits.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from logs.parsing.json_document import json_number, json_step
from logs.parsing.json_lines import flat_row, json_object
from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run

NAME = "levanter"
VERSION = "1"

EVENT = re.compile(r'(\{"tracker": "[\w.-]*", "event": "log", .*\})\s*$')
BAR = re.compile(r"Progress on:train ([\d.]+)([kMG]?)it/\S+ .*postfix:(?:.*, )?loss=(\S+?),?\s*$")
SIZES = {"": 1, "k": 1000, "M": 10**6, "G": 10**9}
EVALUATED = re.compile(r"eval/(.+)/(loss|bpb)$")
PERCENT = "throughput/mfu"


def matches(sample: Sample) -> bool:
    """A logged step, or a progress line of training with its loss."""
    return has_line(sample, EVENT) or has_line(sample, BAR)


@dataclass(frozen=True)
class _Bar:
    """A state of the progress bar: how many steps are done, whether that is shortened, and the loss."""

    at: int
    rank: str
    done: int
    shortened: bool
    loss: float


@dataclass
class _Seen:
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Steps count from 0.

    Where the JSON logger logged, the progress lines say nothing new and are passed over.

    Raises:
        NotALog: neither a logged step nor a progress line with a loss.
    """
    seen = _Seen()
    bars: list[_Bar] = []
    for at, line in text_lines(path, seen.notes):
        rank, text = split_rank(line)
        if match := EVENT.search(text):
            _read_event(at, rank, match[1], seen)
        elif '"event": "log"' in text and '"tracker"' in text:
            seen.notes.add("broken_line", at, "no whole JSON; left out")
        elif (match := BAR.search(text)) and (bar := _bar(at, rank, match)):
            bars.append(bar)
    inferred: tuple[str, ...] = ()
    if len(seen.rows):
        for bar in bars:
            seen.notes.add("progress_lines", bar.at, "the logged steps say more; passed over")
    elif bars:
        inferred += ("step = count of the progress bar - 1: the bar counts the steps that are done",)
        for bar in bars:
            if bar.shortened:
                seen.notes.add(
                    "rounded", bar.at, "steps that the log shortens to three digits; kept as they are"
                )
            seen.rows.add(bar.at, bar.done - 1, {"train/loss": bar.loss}, bar.rank)
    units = {name: "bits/byte" for name in seen.rows.cells if name.endswith("/bpb")}
    return [run_from(path, seen.rows, seen.notes, units=units, inferred=inferred)]


def _read_event(at: int, rank: str, text: str, seen: _Seen) -> None:
    event = json_object(text)
    if event is None:
        seen.notes.add("broken_line", at, "no whole JSON; left out")
        return
    metrics = event.get("metrics")
    step = json_step(event.get("step"))
    if step is None or not isinstance(metrics, dict):
        seen.notes.add("no_step", at, "metrics without a whole-number step from 0 up; left out")
        return
    values: dict[str, float] = {}
    for name, value in flat_row(metrics).items():
        measured = json_number(value)
        if measured is None:
            if value is not None:
                seen.notes.add("text_value", at, "text, lists and histograms; left in the file")
        elif name == PERCENT:
            values["mfu"] = measured / 100
        else:
            values[canonical(name)] = measured
    if values:
        seen.rows.add(at, step, values, rank)


def canonical(name: str) -> str:
    """Levanter's name of an evaluation -> that of the canonical log: `eval/<set>/bpb` -> `eval/<set>/loss_bpb`."""
    match = EVALUATED.fullmatch(name)
    return f"eval/{match[1]}/{'loss_bpb' if match[2] == 'bpb' else 'loss'}" if match else name


def _bar(at: int, rank: str, match: re.Match[str]) -> _Bar | None:
    done, loss = number(match[1]), number(match[3])
    if done is None or loss is None or done < 1:
        return None
    return _Bar(at, rank, round(done * SIZES[match[2]]), bool(match[2]), loss)
