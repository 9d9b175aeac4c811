"""Reader of fairseq and metaseq (OPT): `... | INFO | train_inner | {"epoch": 1, "loss": "21.229", ...}`.

The lines are those of `JsonProgressBar` in `fairseq/logging/progress_bar.py` of facebookresearch/fairseq, with
or without the prefix of its logger; numbers stand as text. Its criteria
(`fairseq/criterions/cross_entropy.py`) log losses to base 2, and `ppl` is 2 to the power of the
cross-entropy. Which key that is, is found by this relation, and only such a loss is turned into nats.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logs.parsing.json_document import json_number, json_step
from logs.parsing.json_lines import json_object
from logs.parsing.text_lines import Notes, has_line, split_rank, text_lines, timestamp
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "fairseq"
VERSION = "1"

LINE = re.compile(
    r"^(?:(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^{]*?\| (?P<tag>[^|{]*?) \| )?(?P<json>\{\".*\})\s*$"
)
MARK = re.compile(r'\{"epoch": \d+, .*"(?:[\w/.-]+_)?num_updates": "?\d')
CROSS_ENTROPIES = ("inner_loss", "nll_loss", "loss")
"""Where the cross-entropy may stand; others of them hold label smoothing or routing losses as well."""

INNER = {"wps": "tokens_per_second", "train_wall": "train_wall"}
UNITS = {"ppl": "perplexity", "train_wall": "s", "wall": "s"}


def matches(sample: Sample) -> bool:
    """A line of statistics with a number of updates."""
    return has_line(sample, MARK)


@dataclass
class _Seen:
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    base_2: dict[str, int] = field(default_factory=dict)
    """Name of a loss -> in how many lines it is the cross-entropy to base 2."""


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Updates count from 1.

    Raises:
        NotALog: no line of statistics has a number of updates.
    """
    seen = _Seen()
    for at, line in text_lines(path, seen.notes):
        rank, text = split_rank(line)
        match = LINE.match(text)
        row = json_object(match["json"]) if match else None
        if match and row is not None:
            _read_row(at, rank, match, row, seen)
        elif match or '{"epoch": ' in text:
            seen.notes.add("broken_line", at, "no whole JSON; left out")
    inferred = tuple(
        f"{name} = {own} * ln 2 in {count} rows: there ppl = 2 ** {own}, so {own} is in bits per token"
        for (name, own), count in _conversions(seen)
    )
    if "wall_time" in seen.rows.cells:
        inferred += ("wall_time: the log states no time zone; taken as UTC",)
    units = UNITS | dict.fromkeys(seen.base_2, "bits/token")
    own_names = [
        name
        for name in seen.rows.cells
        if "loss" in name and name not in ("train/loss",) and not name.startswith("eval/")
    ]
    return [
        run_from(
            path,
            seen.rows,
            seen.notes,
            facts=RunFacts(steps_from=1),
            units=units,
            inferred=inferred,
            own_names=own_names,
        )
    ]


def _conversions(seen: _Seen) -> list[tuple[tuple[str, str], int]]:
    return [((_canonical(own), own), count) for own, count in seen.base_2.items()]


def _canonical(own: str) -> str:
    """`loss` -> `train/loss`, `valid_nll_loss` -> `eval/valid/loss`."""
    for key in CROSS_ENTROPIES:
        if own == key:
            return "train/loss"
        if own.endswith(f"_{key}"):
            return f"eval/{_set(own.removesuffix(f'_{key}'))}/loss"
    return own


def _set(prefix: str) -> str:
    """`valid` is the validation set; `valid/books` and `valid1` keep what tells them apart."""
    return "validation" if prefix == "valid" else prefix.removeprefix("valid/").replace("/", "-")


def _read_row(at: int, rank: str, match: re.Match[str], row: dict[str, Any], seen: _Seen) -> None:
    """One line of statistics: of the training between two lines, of an epoch (`train_*`) or of a set."""
    counter = next((key for key in row if key == "num_updates" or key.endswith("_num_updates")), None)
    step = json_step(row.get(counter)) if counter else None
    if step is None:
        seen.notes.add("no_step", at, "statistics without a number of updates; left out")
        return
    prefix = counter.removesuffix("num_updates") if counter else ""
    values: dict[str, float] = {}
    for key, value in row.items():
        if key == counter or key == "update":
            continue
        number = json_number(value)
        if number is not None:
            values[INNER.get(key, key)] = number
        elif value is not None:
            seen.notes.add("text_value", at, f"no number, such as that of {key}; left in the file")
    perplexity = values.get(f"{prefix}ppl")
    for key in CROSS_ENTROPIES:
        own = f"{prefix}{key}"
        if prefix != "train_" and perplexity and own in values and _is_base_2(values[own], perplexity):
            values[_canonical(own)] = values[own] * math.log(2)
            seen.base_2[own] = seen.base_2.get(own, 0) + 1
            break
    if match["time"] and (moment := timestamp(match["time"])) is not None:
        values["wall_time"] = moment
    seen.rows.add(at, step, values, rank)


def _is_base_2(loss: float, perplexity: float) -> bool:
    """Both are rounded: the loss to three decimals."""
    return (
        perplexity > 0
        and math.isfinite(loss)
        and math.isfinite(perplexity)
        and abs(math.log2(perplexity) - loss) < 2e-3 + 1e-3 * abs(loss)
    )
