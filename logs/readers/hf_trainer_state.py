"""Reader of `trainer_state.json`, which the Trainer of Hugging Face transformers saves in its checkpoints.

Its `log_history` (`TrainerState` in `src/transformers/trainer_callback.py` of huggingface/transformers) holds
one record per logging, evaluation and prediction; the last one holds means over the whole training.
"""

import re
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.json_document import json_number, json_step, load_document
from logs.parsing.text_lines import Notes
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Quirk, Run, RunFacts

NAME = "hf-trainer-state"
VERSION = "1"

MARK = re.compile(r'"log_history"\s*:\s*\[')
EVALUATED = re.compile(r"eval_(?:(.+)_)?(loss|accuracy)$")
PREDICTED = "predict_"
SUMMARY = "train_runtime"
UNITS = {"train_runtime": "s", "eval_runtime": "s", "total_flos": "1", "epoch": "1"}


def matches(sample: Sample) -> bool:
    """One JSON object with a history of records."""
    return sample.text.lstrip().startswith("{") and MARK.search(sample.text) is not None


def read(path: Path) -> list[Run]:
    """The records as one run, its name left to whoever ingests it. Steps count from 1.

    Raises:
        InputError: not JSON, or its history is no list.
        NotALog: no record has a step.
    """
    notes = Notes()
    document = load_document(path, notes)
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{path}: `log_history` is no list of records")
    rows = Rows()
    left_out: dict[str, list[int]] = {}
    for i, record in enumerate(history, start=1):
        if not isinstance(record, dict):
            left_out.setdefault("broken_record", []).append(i)
            continue
        step = json_step(record.get("step"))
        if step is None:
            predicted = any(key.startswith(PREDICTED) for key in record)
            left_out.setdefault("predictions" if predicted else "no_step", []).append(i)
            continue
        values, text = _values(record)
        if text:
            left_out.setdefault("text_value", []).append(i)
        if SUMMARY in record:
            left_out.setdefault("summary", []).append(i)
        rows.add(i, step, values)
    facts = RunFacts(steps_planned=json_step(document.get("max_steps")), steps_from=1)
    run = run_from(
        path,
        rows,
        notes,
        facts=facts,
        units=UNITS,
        own_names=("train_loss",),
        nothing="no record of it has a step",
    )
    quirks = tuple(_quirk(kind, at) for kind, at in left_out.items())
    return [
        Run(run.name, run.table, run.units, run.facts, quirks=(*run.quirks, *quirks), inferred=_inferred(run))
    ]


def _values(record: dict[str, Any]) -> tuple[dict[str, float], bool]:
    """The numbers of a record under the names of the canonical log, and whether it holds anything else."""
    values: dict[str, float] = {}
    text = False
    for key, value in record.items():
        if key == "step":
            continue
        number = json_number(value)
        if number is None:
            text |= value is not None
        elif key == "num_input_tokens_seen":
            values["tokens"] = number
        elif match := EVALUATED.fullmatch(key):
            values[f"eval/{match[1] or 'validation'}/{match[2]}"] = number
        else:
            values[key] = number
    return values, text


ACTIONS = {
    "broken_record": "no JSON objects; left out",
    "no_step": "records without a whole-number step from 0 up; left out",
    "predictions": "`predict_*` records have no step; left out",
    "summary": "means over the whole training, `train_loss` among them; kept under their own names",
    "text_value": "text and lists; left in the file",
}


def _quirk(kind: str, at: list[int]) -> Quirk:
    shown = ", ".join(map(str, at[:5])) + (f" and {len(at) - 5} more" if len(at) > 5 else "")
    return Quirk(kind=kind, count=len(at), where=f"log_history, record {shown}", action=ACTIONS[kind])


def _inferred(run: Run) -> tuple[str, ...]:
    losses = [name for name, unit in run.units.items() if unit == "nats/token"]
    if not losses:
        return ()
    return (f"{', '.join(losses)}: taken as nats per token, the default of transformers' language models",)
