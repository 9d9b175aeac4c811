"""Reader of torchtitan: its console, and the files `step loss` of its loss-comparing tests.

`step:  1  loss:  8.1309  grad_norm:  1.5030  memory:  0.99GiB(1.04%)  tps: 1,234  tflops: 0.09  mfu: 0.01%`
and `validate step: ...` as `torchtitan/components/metrics.py` of pytorch/torchtitan prints them, coloured and
behind the prefix of `torchtitan/tools/logging.py`; the files are those of its `tests/assets/losses`. There
`tps` is per device, so it is not the run's tokens per second.
"""

import re
from itertools import pairwise
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, opening, split_rank, text_lines, timestamp
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "torchtitan"
VERSION = "1"

STEP = re.compile(r"(?:^|- )(validate )?step: +(\d{1,12}) +((?:loss|tps|memory|grad_norm): .*)$")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?")
PAIR = re.compile(r"([A-Za-z_]\w*): +([-+\d.,eE]+|nan|inf|-inf)(GiB|%)?(?:\(([\d.]+)%\))?")
PLAIN = re.compile(r"^(\d{1,12}) (-?\d+\.\d+(?:[eE][-+]?\d+)?|nan|inf)$")

NAMES = {"loss": "train/loss", "tps": "tps per device", "memory": "memory reserved", "wps": "tps per device"}
UNITS = {
    "tps per device": "tokens/s",
    "memory reserved": "bytes",
    "memory reserved share": "fraction",
    "validate/tps per device": "tokens/s",
    "validate/memory reserved": "bytes",
    "validate/memory reserved share": "fraction",
}
GIB = 2**30


def matches(sample: Sample) -> bool:
    """A step of the console, or nothing but lines of a step and a loss whose steps follow each other."""
    return has_line(sample, STEP) or _is_plain(opening(sample))


def _is_plain(lines: tuple[str, ...]) -> bool:
    rows = [PLAIN.match(line) for line in lines[:1000] if line.strip()]
    steps = [int(row[1]) for row in rows if row]
    return len(steps) == len(rows) >= 3 and all(b - a == steps[1] - steps[0] > 0 for a, b in pairwise(steps))


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Steps count from 1.

    Raises:
        NotALog: no line of a step.
    """
    rows, notes = Rows(), Notes()
    plain = 0
    for at, line in text_lines(path, notes):
        rank, text = split_rank(line)
        if match := STEP.search(text):
            values = _values(at, match[3], "validate" if match[1] else "", notes)
            if (time := TIME.search(text[: match.start()])) and (moment := timestamp(time[0])) is not None:
                values["wall_time"] = moment
            rows.add(at, int(match[2]), values, rank)
        elif (match := PLAIN.match(text)) and (value := number(match[2])) is not None:
            plain += 1
            rows.add(at, int(match[1]), {"train/loss": value})
    inferred: tuple[str, ...] = ()
    if plain:
        inferred += (
            "the file has no header; its two columns are taken as step and loss, as torchtitan's are",
        )
    if "wall_time" in rows.cells:
        inferred += ("wall_time: the log states no time zone; taken as UTC",)
    return [run_from(path, rows, notes, facts=RunFacts(steps_from=1), units=UNITS, inferred=inferred)]


def _values(at: int, text: str, kind: str, notes: Notes) -> dict[str, float]:
    """What a line says, under the names of the canonical log; numbers may have thousands commas."""
    values: dict[str, float] = {}
    end = 0
    for match in PAIR.finditer(text):
        end = match.end()
        value = number(match[2].replace(",", ""))
        if value is None:
            continue
        name = NAMES.get(match[1], match[1])
        if kind:
            name = "eval/validation/loss" if name == "train/loss" else f"{kind}/{name}"
        values[name] = value * GIB if match[3] == "GiB" else value / 100 if match[3] == "%" else value
        if match[4] is not None and (share := number(match[4])) is not None:
            values[f"{name} share"] = share / 100
    if text[end:].strip():
        notes.add("broken_line", at, "cut off, or mixed with another line; what is whole in it was taken")
    return values
