"""Reader of llm.c: `main.log`, which modded-nanogpt's first runs write too, and its standard output.

`s:19560 tel:3.2722`, `s:0 trl:11.0091 lr:0.000001 norm:15.37` and `s:0 eval:0.2487` (HellaSwag) as
`llmc/logger.h` of karpathy/llm.c prints them, steps from 0; and `step    1/19560 | loss 11.009151 (+nanz)|
norm 15.3712 (+nanz)| lr 8.57e-07 | 3056.36 ms | 42.6% bf16 MFU | 171595 tok/s`, `val loss 11.009` and
`HellaSwag: 2497/10042 = 0.2487` as `train_gpt2.cu` does, steps from 1.
"""

import re
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "llm-c"
VERSION = "1"

SHORT = re.compile(r"^s:(\d{1,12}) ((?:[a-z_]+:\S+ ?)+)$")
STEP = re.compile(r"^step +(\d{1,12})/(\d{1,12}) \| (loss .*)$")
VALIDATION = re.compile(r"^val loss (\S+)$")
HELLASWAG = re.compile(r"^HellaSwag: \d+/\d+ = (\S+)$")
FIELDS = (
    ("train/loss", re.compile(r"loss (\S+)"), 1.0),
    ("loss z-score", re.compile(r"loss \S+ \(([^)]*)z\)"), 1.0),
    ("grad_norm", re.compile(r"norm (\S+)"), 1.0),
    ("grad norm z-score", re.compile(r"norm \S+ \(([^)]*)z\)"), 1.0),
    ("lr", re.compile(r"lr (\S+)"), 1.0),
    ("step_time", re.compile(r"([\d.]+) ms"), 1000.0),
    ("mfu", re.compile(r"(-?[\d.]+)% (?:\w+ )?MFU"), 100.0),
    ("tokens_per_second", re.compile(r"(\S+) tok/s"), 1.0),
)
"""Name, where it stands in a line of standard output, and by what it is divided."""

NAMES = {
    "trl": "train/loss",
    "tel": "eval/validation/loss",
    "eval": "eval/hellaswag/accuracy",
    "norm": "grad_norm",
}
UNITS = {"loss z-score": "1", "grad norm z-score": "1"}


def matches(sample: Sample) -> bool:
    """A line of `main.log` or a step of the standard output."""
    return has_line(sample, re.compile(r"^s:\d+ (trl|tel|eval):")) or has_line(
        sample, re.compile(r"^step +\d+/\d+ \| loss \S+ \(\S+z\)")
    )


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Raises:
        NotALog: no line of a step.
    """
    rows, notes = Rows(), Notes()
    pending: list[tuple[int, str, float]] = []
    last = 0
    total: int | None = None
    for at, line in text_lines(path, notes):
        rank, text = split_rank(line)
        text = text.rstrip()
        if match := SHORT.match(text):
            _read_short(at, rank, match, rows, notes)
        elif match := STEP.match(text):
            last, total = int(match[1]), int(match[2])
            for line_of_it, name, measured in pending:
                rows.add(line_of_it, max(last - 1, 0), {name: measured}, rank)
            pending.clear()
            rows.add(at, last, _fields(match[3]), rank)
        elif (match := VALIDATION.match(text)) and (value := number(match[1])) is not None:
            pending.append((at, "eval/validation/loss", value))
        elif (match := HELLASWAG.match(text)) and (value := number(match[1])) is not None:
            pending.append((at, "eval/hellaswag/accuracy", value))
    for line_of_it, name, measured in pending if total is not None else ():
        rows.add(line_of_it, last, {name: measured})
    facts = RunFacts(steps_planned=total, steps_from=None if total is None else 1)
    return [run_from(path, rows, notes, facts=facts, units=UNITS)]


def _read_short(at: int, rank: str, match: re.Match[str], rows: Rows, notes: Notes) -> None:
    values: dict[str, float] = {}
    for pair in match[2].split():
        name, _, text = pair.partition(":")
        value = number(text)
        if value is None:
            notes.add("text_value", at, "values that are no number; left in the file")
        else:
            values[NAMES.get(name, name)] = value
    rows.add(at, int(match[1]), values, rank)


def _fields(text: str) -> dict[str, float]:
    """What a line of standard output says; a z-score of `nan` is one that cannot be taken yet."""
    values: dict[str, float] = {}
    for name, pattern, divisor in FIELDS:
        match = pattern.search(text)
        value = number(match[1]) if match else None
        if value is not None and not (value != value and name.endswith("z-score")):
            values[name] = value / divisor
    return values
