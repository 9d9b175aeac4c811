"""Reader of Marin's speedrun results: the end of a run, one row with its evaluation, and what it states.

The form is that of `speedrun_results.json` in `experiments/speedrun/*/` of marin-community/marin. The result
is no history: it gives one point, bits per byte on C4 (English) as Paloma splits it.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.json_document import json_number, json_step, load_document
from logs.parsing.text_lines import Notes
from logs.parsing.text_rows import Rows, run_from
from logs.readers import NotALog, Sample
from logs.schema import Quirk, Run, RunFacts

NAME = "marin-speedrun"
VERSION = "1"

MARK = re.compile(r'^\s*\{\s*"runs"\s*:\s*\[\s*\{\s*"run_info"')
EVALUATED = re.compile(r"eval/(?:(.+)/)?(bpb|loss)$")
ONE_POINT = Quirk(
    kind="final_point_only",
    count=1,
    where="the whole file",
    action="a result, not a history: one row, the last step",
)


def matches(sample: Sample) -> bool:
    """A list of runs, each with its `run_info`."""
    return MARK.match(sample.text) is not None


def read(path: Path) -> list[Run]:
    """One run with one row per result in the file.

    Raises:
        InputError: not JSON, or not of this form.
        NotALog: no result.
    """
    notes = Notes()
    document = load_document(path, notes)
    results = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        raise NotALog(f"{path}: a file of speedrun results without a run")
    runs = [_run(path, result, i, notes) for i, result in enumerate(results, start=1)]
    return runs if len(runs) == 1 else [replace(run, name=str(i)) for i, run in enumerate(runs, start=1)]


def _run(path: Path, result: Any, place: int, notes: Notes) -> Run:
    info = result.get("run_info") if isinstance(result, dict) else None
    if not isinstance(info, dict):
        raise InputError(f"{path}: run {place} has no `run_info`")
    train, model = _mapping(info.get("train_config")), _mapping(info.get("model_config"))
    steps, tokens = json_step(train.get("num_train_steps")), json_step(info.get("total_tokens"))
    if not steps:
        raise InputError(f"{path}: run {place} states no `train_config.num_train_steps`")
    values: dict[str, float] = {"tokens": tokens} if tokens else {}
    for key, value in info.items():
        match, number = EVALUATED.fullmatch(key), json_number(value)
        if match and number is not None:
            values[f"eval/{match[1] or 'validation'}/{'loss_bpb' if match[2] == 'bpb' else 'loss'}"] = number
        elif key == "training_time" and number is not None:
            values["training_time"] = number
    rows = Rows()
    rows.add(0, steps - 1, values)
    batch, seq_len = json_step(train.get("train_batch_size")), json_step(model.get("seq_len"))
    title = info.get("description")
    facts = RunFacts(
        title=title if isinstance(title, str) else None,
        params_total=json_step(info.get("model_size")),
        tokens_planned=tokens,
        steps_planned=steps,
        batch_sequences=batch,
        seq_len=seq_len,
        tokens_per_step=batch * seq_len if batch and seq_len else None,
    )
    run = run_from(path, rows, notes, facts=facts, units={"training_time": "s"})
    return replace(run, quirks=(*run.quirks, ONE_POINT))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
