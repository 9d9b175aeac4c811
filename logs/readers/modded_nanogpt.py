"""Reader of modded-nanogpt: `step:1/5100 train_loss:15.9932 train_time:23767ms step_avg:nanms`.

The lines are those that `train_gpt.py` (`train_gpt2.py` before) of KellerJordan/modded-nanogpt prints, after
its own source code. Newer logs have no training loss between the validations. `step_avg:nanms` says that
nothing was measured yet.
"""

import re
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "modded-nanogpt"
VERSION = "1"

STEP = re.compile(r"^(s?tep):(\d{1,12})/(\d{1,12}) ((?:\w+:\S+ ?)+)$")
VALUE = re.compile(r"(.+?)(ms|s)?")
NAMES = {"train_loss": "train/loss", "val_loss": "eval/validation/loss"}
UNITS = {"train_time": "s", "step_avg": "s"}


def matches(sample: Sample) -> bool:
    """A line of a step with a validation loss or a time."""
    return has_line(sample, re.compile(r"^s?tep:\d+/\d+ (train_loss|val_loss|train_time):"))


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Step k of a line of training is the k-th, counted from 1; a validation at k follows k steps.

    Raises:
        NotALog: no line of a step.
    """
    rows, notes = Rows(), Notes()
    total: int | None = None
    for at, line in text_lines(path, notes):
        rank, text = split_rank(line)
        match = STEP.match(text.rstrip())
        if match is None:
            continue
        if match[1] == "tep":
            notes.add("torn_line", at, "the first letter of the line is missing; read all the same")
        total = int(match[3])
        values: dict[str, float] = {}
        for pair in match[4].split():
            name, _, measured = pair.partition(":")
            found = VALUE.fullmatch(measured)
            value = number(found[1]) if found else None
            if found is None or value is None:
                notes.add("text_value", at, "values that are no number; left in the file")
            elif value != value and found[2]:
                notes.add(
                    "sentinel", at, f"a time of {measured} says that it was not measured yet; left empty"
                )
            else:
                values[NAMES.get(name, name)] = value / {"ms": 1000}.get(found[2], 1)
        rows.add(at, int(match[2]), values, rank)
    return [run_from(path, rows, notes, facts=RunFacts(steps_planned=total, steps_from=1), units=UNITS)]
