"""Reader of MLPerf logs: `:::MLLOG {"key": "eval_accuracy", "value": 3.29, "metadata": {...}, ...}`.

The form is that of `mlperf_logging/mllog/mllog.py` of mlcommons/logging. Its rules call the quality of every
benchmark `eval_accuracy`: for the language models that train from text it is the validation loss.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.json_document import json_number, json_step
from logs.parsing.json_lines import json_object
from logs.parsing.text_lines import Notes, has_line, split_rank, text_lines
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "mlperf"
VERSION = "1"

EVENT = re.compile(r":::MLLOG (\{.*)$")
STEPS = ("step_num", "step", "iteration", "iter")
SAMPLES = ("samples_count", "samples")
LANGUAGE_MODELS = ("gpt3", "llama", "gpt-oss", "gpt_oss", "deepseek", "mixtral", "moe")
"""Beginnings of the names of benchmarks whose quality is a loss in nats per token."""


def matches(sample: Sample) -> bool:
    """An event of MLPerf."""
    return has_line(sample, re.compile(r'(?:^|\s):::MLLOG \{.*"key"'))


@dataclass
class _Seen:
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    settings: dict[str, Any] = field(default_factory=dict)
    by_samples: int = 0


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Raises:
        NotALog: no event has a step and a number.
        InputError: events count samples only, and the log states no global batch size.
    """
    seen = _Seen()
    for at, line in text_lines(path, seen.notes):
        if (match := EVENT.search(line)) is None:
            continue
        event = json_object(match[1].rstrip())
        if event is None:
            seen.notes.add("broken_line", at, "no whole JSON; left out")
        elif isinstance(event.get("key"), str):
            _read_event(path, at, split_rank(line)[0], event, seen)
    facts, inferred = _facts(seen)
    units = {"eval_accuracy": "accuracy"} if _benchmark(seen) == "bert" else {}
    return [
        run_from(
            path,
            seen.rows,
            seen.notes,
            facts=facts,
            units=units,
            inferred=inferred,
            nothing="no event of it has both a step and a number",
        )
    ]


def _benchmark(seen: _Seen) -> str:
    name = seen.settings.get("submission_benchmark")
    return name.lower() if isinstance(name, str) else ""


def _read_event(path: Path, at: int, rank: str, event: dict[str, Any], seen: _Seen) -> None:
    """An event with numbers: a row if it states where it belongs, else a setting of the run."""
    key, value = event["key"], event.get("value")
    metadata: Any = event.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    named = {f"{key}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    values = {name: number for name, v in named.items() if (number := json_number(v)) is not None}
    place = {k: v for k, v in metadata.items() if k in STEPS or k in SAMPLES}
    if not place:
        if value is not None and "epoch_num" not in metadata:
            seen.settings.setdefault(key, value)
        elif values:
            seen.notes.add("no_step", at, "events with neither a step nor a count of samples; left out")
        return
    if not values:
        return
    if key == "eval_accuracy" and _benchmark(seen).startswith(LANGUAGE_MODELS):
        values = {"eval/validation/loss": values[key]} if key in values else values
    for name in ("lr", "learning_rate", "epoch_num"):
        if (number := json_number(metadata.get(name))) is not None:
            values[name] = number
    if (time := json_number(event.get("time_ms"))) is not None:
        values["wall_time"] = time / 1000
    samples = next((n for k in SAMPLES if (n := json_step(place.get(k))) is not None), None)
    if samples is not None:
        values["samples"] = samples
    step = next((n for k in STEPS if (n := json_step(place.get(k))) is not None), None)
    if step is None and samples is not None:
        batch = json_step(seen.settings.get("global_batch_size"))
        if not batch:
            raise InputError(
                f"{path}, line {at}: counts samples, and no event before it states `global_batch_size`; steps "
                "cannot be told"
            )
        step, seen.by_samples = samples // batch, seen.by_samples + 1
    if step is None:
        seen.notes.add("no_step", at, "events with neither a step nor a count of samples; left out")
        return
    seen.rows.add(at, step, values, rank)


def _facts(seen: _Seen) -> tuple[RunFacts, tuple[str, ...]]:
    """What the events before the run state, and what was inferred from them."""
    batch = json_step(seen.settings.get("global_batch_size")) or None
    seq_len = json_step(seen.settings.get("max_sequence_length")) or None
    name = seen.settings.get("opt_name")
    facts = RunFacts(
        title=_benchmark(seen) or None,
        batch_sequences=batch,
        seq_len=seq_len,
        seed=json_step(seen.settings.get("seed")),
        optimizer=name if isinstance(name, str) else None,
        steps_from=1,
    )
    inferred: tuple[str, ...] = ()
    if seen.by_samples:
        inferred += (f"step = samples // {batch} (global_batch_size) in {seen.by_samples} rows",)
    if "eval/validation/loss" in seen.rows.cells:
        inferred += (f"eval_accuracy of {_benchmark(seen)} is its validation loss, by the rules of MLPerf",)
    return facts, inferred
