"""Reader of the standard output of Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and their kin.

The lines are those of `training_log` and `evaluate_and_print_results` in `megatron/training/training.py` of
NVIDIA/Megatron-LM (`iteration 200/ 148693 | consumed samples: ... | lm loss: ... |` and `validation loss at
iteration 100 | lm loss value: ... | lm loss PPL: ... |`), of `megatron/training.py` of
bigscience-workshop/Megatron-DeepSpeed (consumed tokens too) and of EleutherAI/gpt-neox (`samples/sec` first).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logs.parsing.piped_fields import Alike, alike_lines, split_lines
from logs.parsing.text_lines import Notes, has_line, number, split_rank, text_blocks, timestamp
from logs.parsing.text_rows import Cells, Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "megatron-text"
VERSION = "1"

TRAIN = re.compile(r"(?:^|[\s|])(?<!, )iteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
HEAD = (  # no more groups, and no choice that a later letter decides: RE2 is several times faster so
    r"^(?P<rank>\[?[a-z]*\d{1,6}\]?:)? +(?:\[(?P<time>[-\d]{10} [:\d]{8})(?:\.\d+)?\] +)?"
    r"iteration +(?P<step>\d{1,12})/ *\d{1,12} *$"
)
EVAL = re.compile(r"(?:^|\s)(valid|validation|test) loss at (.*?)\s*\|")
EVAL_STEP = re.compile(r"iteration (\d{1,12})(?: on (.+))?")
TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?\]")
DEEPSPEED = re.compile(r"^steps: (\d{1,12}) loss: (\S+) iter time \(s\): (\S+) samples/sec: (\S+)\s*$")
DEEPSPEED_NAMES = ("deepspeed/loss", "deepspeed/iter time (s)", "deepspeed/samples/sec")
ARGUMENT = re.compile(r"^\s+([a-z][a-z0-9_]*) \.{3,} (.+?)\s*$")
MEASURED = re.compile(r"([-+0-9.eE]+)\s*([A-Za-z][A-Za-z/]*)")

MILLISECONDS = "elapsed time per iteration (ms)"
SECONDS = "elapsed time per iteration (s)"
UNITS = {
    "num zeros": "1",
    "loss scale": "1",
    "params norm": "1",
    "global batch size": "1",
    "deepspeed/iter time (s)": "s",
}
NAMED = {MILLISECONDS: ("step_time", 1000.0), SECONDS: ("step_time", 1.0)}
"""Name in the log -> name, and how many of the log's units are one of its unit."""

NO_STEP = "states no iteration; taken as that of the training line before it"


def matches(sample: Sample) -> bool:
    """A training or validation line of Megatron."""
    return has_line(sample, TRAIN) or has_line(sample, re.compile(r"valid(ation)? loss at iteration \d+ \|"))


@dataclass
class _Seen:
    """What the lines so far have said beside their rows."""

    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    arguments: dict[str, str] = field(default_factory=dict)
    last_step: int = 0
    total: int | None = None


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Iterations count from 1.

    Raises:
        NotALog: no line of training or validation.
    """
    seen = _Seen()
    for first, lines in text_blocks(path, seen.notes):
        _read_block(first, lines, seen)
    facts = _facts(seen)
    inferred = _add_tokens(seen.rows, facts.seq_len)
    if "wall_time" in seen.rows.cells:
        inferred += ("wall_time: the log states no time zone; taken as UTC",)
    return [run_from(path, seen.rows, seen.notes, facts=facts, units=UNITS, inferred=inferred)]


def _read_block(first: int, text: str, seen: _Seen) -> None:
    """The rows in a block of lines: training lines alike at once, all other lines one by one."""
    lines = split_lines(text)
    done = np.zeros(len(lines), bool)
    for group in alike_lines(lines):
        done[group.index[_add_alike(first, group, seen)]] = True
    for i in np.flatnonzero(~done):
        _read_line(first + int(i), lines[int(i)].as_py().rstrip("\n"), seen)


def _read_line(at: int, line: str, seen: _Seen) -> None:
    """A line of training, validation, DeepSpeed or the printed arguments, if it is one."""
    rank, text = split_rank(line)
    if "|" in text and (match := EVAL.search(text)):
        _read_evaluation(at, rank, match, text[match.end() :], seen)
    elif "|" in text and (match := TRAIN.search(text)):
        _read_training(at, rank, match, text, seen)
    elif match := DEEPSPEED.match(text):
        named = zip(DEEPSPEED_NAMES, map(number, match.groups()[1:]), strict=True)
        values = {name: value for name, value in named if value is not None}
        seen.rows.add(at, int(match[1]), values, rank)
    elif " ..." in text and (match := ARGUMENT.match(text)):
        seen.arguments.setdefault(match[1], match[2])


def _read_evaluation(at: int, rank: str, match: re.Match[str], rest: str, seen: _Seen) -> None:
    """`validation loss at iteration 100 on <set> | lm loss value: 9.3E+00 | lm loss PPL: 1.1E+04 |`."""
    place = EVAL_STEP.search(match[2])
    if place is None:
        seen.notes.add("no_step", at, NO_STEP)
    step = int(place[1]) if place else seen.last_step
    named = (place[2] or "") if place else ""
    name = named.removesuffix(" set") or ("test" if "test" in match[0] else "validation")
    values: dict[str, float] = {}
    for part in rest.split("|"):
        key, _, text = part.rpartition(":")
        value = number(text)
        if value is None:
            continue
        values[_evaluated(f"eval/{name}", key.strip())] = value
    if values:
        seen.rows.add(at, step, values, rank)


def _evaluated(prefix: str, key: str) -> str:
    """`lm loss value` -> `eval/<set>/loss`; other losses keep their names below `eval/<set>/`."""
    for ending, name in ((" value", "loss"), (" PPL", "perplexity")):
        if key.endswith(ending):
            own = key.removesuffix(ending)
            return f"{prefix}/{name}" if own in ("lm loss", "lm_loss", "loss") else f"{prefix}/{own}{ending}"
    return f"{prefix}/{key}"


def _read_training(at: int, rank: str, match: re.Match[str], text: str, seen: _Seen) -> None:
    """One training line whatever it holds; `match` is its iteration."""
    if second := TRAIN.search(text, match.end()):
        start = max(text.rfind("|", 0, second.start()), text.rfind("[", 0, second.start()), match.end())
        _read_training(at, rank, match, text[:start], seen)
        if again := TRAIN.search(text[start:]):
            _read_training(at, rank, again, text[start:], seen)
        return
    text = text.rstrip()
    if not text.endswith("|"):
        seen.notes.add(
            "broken_line", at, "cut off, or mixed with another line; what is whole in it was taken"
        )
        text = text[: text.rfind("|") + 1]
    seen.last_step, seen.total = int(match[1]), int(match[2])
    values: dict[str, float] = {}
    if (time := TIME.search(text[: match.start()])) and (moment := timestamp(time[1])) is not None:
        values["wall_time"] = moment
    before = text[: match.start() + 1].rpartition("|")[0]
    for part in f"{before}|{text[match.end() :]}".split("|"):
        named = _field(part)
        if named is not None:
            name, per_unit = NAMED.get(named[0], (named[0], 1.0))
            values[name] = named[1] / per_unit
        elif part.strip():
            seen.notes.add("text_value", at, f"no number, such as {part.strip()[:60]!r}; left in the file")
    seen.rows.add(at, seen.last_step, values, rank)


def _field(part: str) -> tuple[str, float] | None:
    """`lm loss: 8.1E+00`, ` learning rate 1.0E-04` or `flops: 40.1TFLOPS` as a name and a number."""
    key, colon, text = part.rpartition(":")
    if not colon:
        key, _, text = part.strip().rpartition(" ")
    key, text = " ".join(key.split()), text.strip()
    value = number(text)
    if value is None and (measured := MEASURED.fullmatch(text)):
        key, value = f"{key} ({measured[2]})", number(measured[1])
    return None if value is None or not key else (key, value)


def _add_alike(first: int, group: Alike, seen: _Seen) -> NDArray[np.bool_]:
    """Add the rows of training lines that hold the same names; which lines of the group are such."""
    found = pc.extract_regex(group.heads, HEAD)
    plain = found.is_valid().to_numpy(zero_copy_only=False)
    if not plain.any():
        return plain
    rank, time, step_text = (column.filter(pa.array(plain)) for column in found.flatten())
    step = pc.cast(step_text, pa.int64()).to_numpy()
    seen.last_step = int(step[-1])
    seen.total = int(group.heads[int(np.flatnonzero(plain)[-1])].as_py().rpartition("/")[2])
    label = rank.dictionary_encode()
    writers = [
        seen.rows.writers.setdefault(split_rank(name)[0], len(seen.rows.writers))
        for name in label.dictionary.to_pylist()
    ]
    every = np.arange(len(step))
    cells: dict[str, Cells] = {}
    for name, values in group.columns.items():
        target, per_unit = NAMED.get(name, (name, 1.0))
        cells[target] = (every, values[plain] / per_unit)
    times = pc.strptime(time, "%Y-%m-%d %H:%M:%S", "s", error_is_null=True)
    known = np.flatnonzero(times.is_valid())
    if len(known):
        cells["wall_time"] = (
            known,
            times.take(pa.array(known)).cast(pa.int64()).to_numpy().astype("float64"),
        )
    writer = np.array(writers, "int64")[label.indices.to_numpy()]
    seen.rows.extend(group.index[plain] + first, step, writer, cells)
    return plain


def _facts(seen: _Seen) -> RunFacts:
    """What the printed arguments say of the run."""

    def integer(name: str) -> int | None:
        text = seen.arguments.get(name, "").replace("_", "")
        return int(text) if text.isdecimal() and len(text) < 18 else None

    constant = seen.arguments.get("rampup_batch_size", "None") == "None"
    return RunFacts(
        seq_len=integer("seq_length"),
        batch_sequences=integer("global_batch_size") if constant else None,
        vocab_size=integer("padded_vocab_size"),
        optimizer=seen.arguments.get("optimizer"),
        precision=seen.arguments.get("params_dtype"),
        seed=integer("seed"),
        steps_planned=seen.total,
        steps_from=1,
    )


def _add_tokens(rows: Rows, seq_len: int | None) -> tuple[str, ...]:
    """Tokens as samples times the sequence length where the log states only these; what was inferred."""
    if seq_len is None or "consumed tokens" in rows.cells or "consumed samples" not in rows.cells:
        return ()
    index, values = rows.cells["consumed samples"]
    samples = np.frombuffer(values, "float64")
    rows.fill("consumed tokens", np.frombuffer(index, "int64"), samples * seq_len)
    return (f"tokens = consumed samples * {seq_len} (seq_length as printed) in {len(samples)} rows",)
