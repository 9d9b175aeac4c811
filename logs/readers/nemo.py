"""Reader of the console of NeMo: its progress printer and its progress bars.

`Training epoch 0, iteration 9/99 | lr: 2.699e-06 | global_step: 9 | reduced_train_loss: 11.03 | ...` as
`nemo/lightning/pytorch/callbacks/progress_printer.py` of NVIDIA/NeMo prints it; and bars such as `Epoch 0: :
47%|####     | 7/15 [06:19<07:13, reduced_train_loss=11.50, global_step=5.000, consumed_samples=12288.0]`, in
which Lightning (`pytorch/callbacks/progress/tqdm_progress.py`) shortens numbers to five characters: from 1,000
on `global_step` reads 1e+3, and only the count of the bar tells the step.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "nemo"
VERSION = "1"

PRINTED = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,12})/(\d{1,12}) \| (.*)$")
BAR = re.compile(r"Epoch (\d{1,9}):[^|]*\|[^|]*\| *(\d{1,12})/(\d{1,12}) \[([^\[\]]*)\]")
LOSS = "reduced_train_loss"
STEP_TIME = ("train_step_timing in s", "train_step_timing")
VALIDATION = re.compile(r"val(?:idation)?_loss$")
COUNTS = ("consumed_samples", "global_step")


def matches(sample: Sample) -> bool:
    """A line of training with the loss that NeMo reduces over the ranks."""
    return has_line(sample, re.compile(rf"(?:{PRINTED.pattern[:-5]}|{BAR.pattern[:20]}).*{LOSS}"))


@dataclass
class _Bar:
    """A bar whose step is not told yet."""

    at: int
    rank: str
    count: int
    values: dict[str, float]


@dataclass
class _Seen:
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    bars: list[_Bar] = field(default_factory=list)
    ahead: Counter[int] = field(default_factory=Counter)
    """By how much the count of a bar exceeds its `global_step`, and how often."""
    total: int | None = None


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Steps count from 0, as `global_step` does.

    Raises:
        NotALog: no line of training has a step.
    """
    seen = _Seen()
    for at, line in text_lines(path, seen.notes):
        rank, text = split_rank(line)
        if match := PRINTED.search(text):
            _read_printed(at, rank, match, seen)
        elif LOSS in text:
            for match in BAR.finditer(text):
                _read_bar(at, rank, match, seen)
    ahead = seen.ahead.most_common(1)[0][0] if seen.ahead else 1
    for bar in seen.bars:
        seen.rows.add(bar.at, max(bar.count - ahead, 0), bar.values, bar.rank)
    inferred: tuple[str, ...] = ()
    if seen.bars:
        where = f"in {len(seen.bars)} rows, where global_step is shortened to three digits"
        inferred += (f"step = count of the progress bar - {ahead} {where}",)
    facts = RunFacts(steps_planned=seen.total)
    return [run_from(path, seen.rows, seen.notes, facts=facts, inferred=inferred)]


def _values(at: int, pairs: list[tuple[str, str]], seen: _Seen) -> tuple[dict[str, float], int | None]:
    """The numbers under the names of the canonical log, and `global_step` where it is exact."""
    values: dict[str, float] = {}
    step: int | None = None
    for name, text in pairs:
        value = number(text)
        if value is None:
            continue
        exact = "e" not in text.lower() and value == value and 0 <= value < 1e12 and value == int(value)
        if name == "global_step":
            step = int(value) if exact else None
        elif name in STEP_TIME:
            values["step_time"] = value
        elif name in COUNTS and not exact:
            seen.notes.add("rounded", at, "counts that the log shortens to three digits; kept as a metric")
            values[f"{name} rounded"] = value
        elif VALIDATION.match(name):
            values["eval/validation/loss"] = value
        else:
            values[name] = value
    return values, step


def _read_printed(at: int, rank: str, match: re.Match[str], seen: _Seen) -> None:
    seen.total = int(match[3])
    pairs = []
    for part in match[4].split("|"):
        name, _, text = part.rpartition(":")
        pairs.append((name.strip(), text.strip()))
    values, step = _values(at, pairs, seen)
    seen.rows.add(at, max(int(match[2]) - 1, 0) if step is None else step, values, rank)


def _read_bar(at: int, rank: str, match: re.Match[str], seen: _Seen) -> None:
    """A state of a progress bar; one file may hold many of them in a line."""
    seen.total = int(match[3])
    pairs = [
        (name.strip(), text.strip()) for name, _, text in (p.partition("=") for p in match[4].split(","))
    ]
    values, step = _values(at, pairs, seen)
    if not values:
        return
    count = int(match[2])
    if step is None:
        seen.bars.append(_Bar(at, rank, count, values))
    else:
        seen.ahead[count - step] += 1
        seen.rows.add(at, step, values, rank)
