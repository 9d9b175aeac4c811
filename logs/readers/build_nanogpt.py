"""Reader of build-nanogpt: `log.txt` (`step kind value`) and the standard output of the same run.

Both are written by `train_gpt2.py` of karpathy/build-nanogpt: `0 val 10.9310`, `0 hella 0.2413`, `0 train
10.934416`; and `step     0 | loss: 10.955010 | lr 8.3916e-07 | norm: 15.3421 | dt: 23547.83ms | tok/sec:
22264.81`, before which stand `validation loss: 10.9522` and `HellaSwag accuracy: 2497/10042=0.2487` without
their step, and after which every rank prints generated text.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, opening, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "build-nanogpt"
VERSION = "1"

SHORT = re.compile(r"^(\d{1,12}) ([a-z][a-z_]*) ([-+.\deE]+|nan|inf)$")
STEP = re.compile(r"step +(\d{1,12}) \| (loss: .*)$")
VALIDATION = re.compile(r"^validation loss: (\S+)$")
HELLASWAG = re.compile(r"^HellaSwag accuracy: (\d+)/(\d+)=(\S+)$")
SAMPLE = re.compile(r"^rank (\d+) sample \d+: ")
BATCH = re.compile(r"^total desired batch size: (\d[\d,]{0,15})$")
PARAMETERS = re.compile(r"^num (?:non-)?decayed parameter tensors: [\d,]+, with (\d[\d,]{0,18}) parameters$")
PAIR = re.compile(r"([A-Za-z/_ ]+?):? +(\S+?)(ms)?")
NAMES = {
    "loss": "train/loss",
    "train": "train/loss",
    "val": "eval/validation/loss",
    "hella": "eval/hellaswag/accuracy",
    "norm": "grad_norm",
    "dt": "step_time",
    "tok/sec": "tokens_per_second",
}


def matches(sample: Sample) -> bool:
    """A step of the standard output, or lines of `step kind value` throughout."""
    if has_line(sample, re.compile(r"^step +\d+ \| loss: \S+ \| lr \S+ \| norm: ")):
        return True
    lines = [line for line in opening(sample)[:50] if line.strip()]
    found = [match[2] for line in lines if (match := SHORT.match(line))]
    return 2 * len(found) > len(lines) and any(kind in ("train", "val") for kind in found)


@dataclass
class _Seen:
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    pending: list[tuple[int, str, float]] = field(default_factory=list)
    """Evaluations (line, name, value) that wait for the step to which they belong."""
    ranks: set[int] = field(default_factory=set)
    tokens_per_step: int | None = None
    parameters: int = 0
    last_step: int = -1


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Steps count from 0.

    Raises:
        NotALog: no line of a step.
    """
    seen = _Seen()
    for at, line in text_lines(path, seen.notes):
        if match := SHORT.match(line):
            if (value := number(match[3])) is not None:
                seen.rows.add(at, int(match[1]), {NAMES.get(match[2], match[2]): value})
        elif match := STEP.search(line):
            _read_step(at, line, match, seen)
        else:
            _read_other(at, line, seen)
    for at, name, value in seen.pending:
        seen.notes.add("no_step", at, "an evaluation after the last step; taken as that of the step to come")
        seen.rows.add(at, seen.last_step + 1, {name: value})
    facts = RunFacts(tokens_per_step=seen.tokens_per_step, params_total=seen.parameters or None)
    return [run_from(path, seen.rows, seen.notes, facts=facts)]


def _read_step(at: int, line: str, match: re.Match[str], seen: _Seen) -> None:
    step = seen.last_step = int(match[1])
    if match.start():
        seen.notes.add("mixed_line", at, "other text stands before the step; the step was taken")
    for line_of_it, name, measured in seen.pending:
        seen.rows.add(line_of_it, step, {name: measured})
    seen.pending.clear()
    values: dict[str, float] = {}
    for part in match[2].split(" | "):
        pair = PAIR.fullmatch(part.strip())
        value = number(pair[2].replace(",", "")) if pair else None
        if pair is None or value is None:
            seen.notes.add(
                "broken_line", at, "cut off, or mixed with another line; what is whole in it was taken"
            )
            continue
        values[NAMES.get(pair[1], pair[1])] = value / 1000 if pair[3] else value
    seen.rows.add(at, step, values)


def _read_other(at: int, line: str, seen: _Seen) -> None:
    """An evaluation, a fact of the run, or generated text."""
    if match := VALIDATION.match(line):
        if (value := number(match[1])) is not None:
            seen.pending.append((at, "eval/validation/loss", value))
    elif match := HELLASWAG.match(line):
        if (value := number(match[3])) is not None:
            seen.pending.append((at, "eval/hellaswag/accuracy", value))
    elif match := SAMPLE.match(line):
        seen.ranks.add(int(match[1][:6]))
        ranks = f"ranks {min(seen.ranks)}-{max(seen.ranks)}"
        seen.notes.add("interleaved_ranks", at, "")
        seen.notes.actions["interleaved_ranks"] = (
            f"text that {ranks} generated between the steps; passed over"
        )
    elif match := BATCH.match(line):
        seen.tokens_per_step = int(match[1].replace(",", "")) or None
    elif match := PARAMETERS.match(line):
        seen.parameters += int(match[1].replace(",", ""))
