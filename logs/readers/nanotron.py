"""Reader of nanotron: `...: iteration: 91 / 100 | consumed_tokens: 93.2K | lm_loss: 9.2 | lr: 3.3e-05 ...`.

The lines are those of `LoggerWriter.add_scalars_from_list` in `src/nanotron/logging/base.py` of
huggingface/nanotron. `human_format` there rounds everything but the iteration to three digits, so the tokens
are no axis: they stay a metric.
"""

import re
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "nanotron"
VERSION = "1"

LINE = re.compile(r"(?:^|\]: )iteration: (\d{1,12}) / (\d{1,12}) \| ([a-z_/]+: .*)$")
ROUNDED = re.compile(r"(-?[\d.]+(?:e[-+]?\d+)?|-?inf|nan)([KMBTPE]?)")
SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
MILLISECONDS = ("elapsed_time_per_iteration_ms", "time_per_iteration_ms")


def matches(sample: Sample) -> bool:
    """A line of an iteration."""
    return has_line(sample, LINE)


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Iterations count from 1.

    Raises:
        NotALog: no line of an iteration.
    """
    rows, notes = Rows(), Notes()
    total: int | None = None
    for at, line in text_lines(path, notes):
        rank, text = split_rank(line)
        if (match := LINE.search(text)) is None:
            continue
        total = int(match[2])
        values: dict[str, float] = {}
        for part in match[3].split(" | "):
            name, _, measured = part.strip().partition(": ")
            value = _rounded(measured)
            if value is None:
                notes.add("text_value", at, f"no number, such as {part.strip()[:60]!r}; left in the file")
            elif name in MILLISECONDS:
                values["step_time"] = value / 1000
            else:
                values[name] = value
        rows.add(at, int(match[1]), values, rank)
        notes.add("rounded", at, "all values are rounded to three digits by the log; kept as they are")
    facts = RunFacts(steps_planned=total, steps_from=1)
    return [run_from(path, rows, notes, facts=facts, own_names=("consumed_tokens",))]


def _rounded(text: str) -> float | None:
    """`93.2K` -> 93200.0."""
    match = ROUNDED.fullmatch(text.strip())
    value = number(match[1]) if match else None
    return None if match is None or value is None else value * SIZES[match[2]]
