"""Reader of the standard output of nanoGPT and of what was made from it.

`iter 0: loss 4.4512, time 23218.37ms, mfu -100.00%` and `step 0: train loss 4.4501, val loss 4.4402`, as
`train.py` of karpathy/nanoGPT prints them. `train loss` there is an estimate over the training split, apart
from the loss of the batch; MFU is -100 % until it has been measured.
"""

import re
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "nanogpt"
VERSION = "1"

TRAIN = re.compile(r"^iter (\d{1,12}): (loss .*)$")
EVAL = re.compile(r"^step (\d{1,12}): (\w[\w ]* loss .*)$")
PAIR = re.compile(r"([A-Za-z_][\w ]*?)\s+([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))(ms|s|%)?\s*")
NAMES = {
    "loss": "train/loss",
    "train loss": "eval/train/loss",
    "val loss": "eval/validation/loss",
    "time": "step_time",
}
UNITS = {"mfu": "fraction"}
NOT_MEASURED = -100.0


def matches(sample: Sample) -> bool:
    """A line of training or evaluation of nanoGPT."""
    return has_line(sample, TRAIN) or has_line(sample, EVAL)


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Iterations count from 0.

    Raises:
        NotALog: no line of training or evaluation.
    """
    rows, notes = Rows(), Notes()
    for at, line in text_lines(path, notes):
        rank, text = split_rank(line)
        match = TRAIN.match(text) or EVAL.match(text)
        if match is None:
            continue
        values = _values(at, match[2], notes)
        if values:
            rows.add(at, int(match[1]), values, rank)
    return [run_from(path, rows, notes, facts=RunFacts(), units=UNITS)]


def _values(at: int, text: str, notes: Notes) -> dict[str, float]:
    """`loss 4.4, time 193.77ms, mfu 106.93%` under the names of the canonical log."""
    values: dict[str, float] = {}
    for part in text.split(","):
        match = PAIR.fullmatch(part.strip())
        value = number(match[2]) if match else None
        if match is None or value is None:
            notes.add("broken_line", at, "cut off, or mixed with another line; what is whole in it was taken")
            continue
        name, unit = NAMES.get(match[1], match[1]), match[3]
        if unit == "ms":
            value /= 1000
        if unit == "%":
            if name == "mfu" and value == NOT_MEASURED:
                notes.add("sentinel", at, "mfu -100.00% says that it was not measured yet; left empty")
                continue
            value /= 100
        if name == "mfu" and value > 1:
            notes.add(
                "over_100_percent", at, "an MFU above 100 %: the peak that it was taken of is too low; kept"
            )
        values[name] = value
    return values
