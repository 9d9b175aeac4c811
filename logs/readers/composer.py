r"""Reader of the console of Composer (LLM Foundry, MPT): blocks of `[batch=1/100]:` and `\t Train name: value`.

The form is that of `log_to_console` in `composer/loggers/console_logger.py` of mosaicml/composer. Evaluations
(`[Eval batch=10/10] Eval on eval data:`) state no step; they belong to the batch before them.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "composer"
VERSION = "1"

TRAIN = re.compile(r"^(?:\[epoch=(\d{1,9})\])?\[batch=(\d{1,12})(?:/(\d{1,12}))?\]:?\s*$")
OTHER = re.compile(r"^\[(?:token|sample|iteration|epoch|second)=\d+/\d+\]:?\s*$")
EVAL = re.compile(r"^\[Eval batch=\d+/\d+\] Eval on (.+) data:?\s*$")
VALUE = re.compile(r"^\s+(Train|Eval) (\S.*?): (.*?)\s*$")
EVALUATED = re.compile(r"metrics/(.+)/(LanguageCrossEntropy|LanguagePerplexity|CrossEntropy|\w*Accuracy)$")
LEARNING_RATE = re.compile(r"lr-\w+/group0$")
QUALITIES = {
    "LanguageCrossEntropy": "loss",
    "CrossEntropy": "loss",
    "LanguagePerplexity": "perplexity",
}
NAMES = {
    "throughput/tokens_per_sec": "tokens_per_second",
    "l2_norm/grad/global": "grad_norm",
    "time/batch": "batches done",
    "time/token": "tokens done",
}
UNITS = {
    "metrics/train/LanguageCrossEntropy": "nats/token",
    "metrics/train/LanguagePerplexity": "perplexity",
    "metrics/train/TokenAccuracy": "accuracy",
    "LanguageCrossEntropy": "nats/token",
    "Perplexity": "perplexity",
}
NO_STEP = "blocks that count neither batches nor say how many batches are done; left out"


def matches(sample: Sample) -> bool:
    """A block of training or evaluation, its values below it."""
    return has_line(sample, re.compile(r"^\s+(?:Train|Eval) \S+: \S")) and (
        has_line(sample, TRAIN) or has_line(sample, OTHER) or has_line(sample, EVAL)
    )


@dataclass
class _Seen:
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    at: int = 0
    rank: str = ""
    step: int | None = None
    kind: str = ""
    values: dict[str, float] = field(default_factory=dict)
    last_step: int = 0
    total: int | None = None
    epochs: bool = False


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Batches count from 1.

    Raises:
        NotALog: no block has values.
    """
    seen = _Seen()
    for at, line in text_lines(path, seen.notes):
        rank, text = split_rank(line)
        if text.startswith("["):
            _begin(at, rank, text, seen)
        elif seen.kind and (match := VALUE.match(text if text[:1].isspace() else f" {text}")):
            _read_value(at, match, seen)
    _end(seen)
    facts = RunFacts(steps_planned=None if seen.epochs else seen.total, steps_from=1)
    inferred: tuple[str, ...] = ()
    if seen.epochs:
        inferred += (f"step = (epoch - 1) * {seen.total} batches in an epoch + batch",)
    return [run_from(path, seen.rows, seen.notes, facts=facts, units=UNITS, inferred=inferred)]


def _begin(at: int, rank: str, text: str, seen: _Seen) -> None:
    """The head of a block; any other line in brackets ends the block before it."""
    train, other, evaluation = TRAIN.match(text), OTHER.match(text), EVAL.match(text)
    if not (train or other or evaluation):
        return
    _end(seen)
    seen.at, seen.rank, seen.step = at, rank, None
    seen.kind = "eval" if evaluation else "train"
    if train:
        batch = int(train[2])
        seen.total = int(train[3]) if train[3] else seen.total
        if train[1]:
            seen.epochs = True
            seen.step = (int(train[1]) - 1) * seen.total + batch if train[3] and seen.total else None
        else:
            seen.step = batch
    elif evaluation:
        seen.step = seen.last_step


def _read_value(at: int, match: re.Match[str], seen: _Seen) -> None:
    name, value = match[2], number(match[3])
    if value is None:
        seen.notes.add("text_value", at, "values that are no number; left in the file")
    elif seen.kind == "eval" and (found := EVALUATED.search(name)):
        seen.values[f"eval/{found[1]}/{QUALITIES.get(found[2], 'accuracy')}"] = value
    elif LEARNING_RATE.match(name):
        seen.values["lr"] = value
    else:
        seen.values[NAMES.get(name, name)] = value


def _end(seen: _Seen) -> None:
    """The block before, if it has values and a step."""
    if seen.values:
        step, done = seen.step, seen.values.get("batches done")
        if step is None and done is not None and 0 <= done < 1e12:
            step = int(done) + 1
        if step is None:
            seen.notes.add("no_step", seen.at, NO_STEP)
        else:
            seen.rows.add(seen.at, step, seen.values, seen.rank)
            seen.last_step = step
    seen.kind, seen.values = "", {}
