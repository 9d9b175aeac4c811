"""Reader of the golden values of Megatron-LM's functional tests: one JSON object per metric.

`{metric: {start_step, end_step, step_interval, values}}` as written by
`tests/functional_tests/python_test_utils/get_test_results_from_tensorboard_logs.py` of NVIDIA/Megatron-LM;
`values` maps steps to numbers, in older files it is a list. The text "nan" stands where TensorBoard had no
point, so it is a missing value and not a NaN that was logged.
"""

import re
from pathlib import Path
from typing import Any

from experiments.configuration import InputError
from logs.parsing.json_document import json_number, json_step, load_document
from logs.parsing.text_lines import WHOLE_FILE, Notes
from logs.parsing.text_rows import Rows, run_from
from logs.readers import Sample
from logs.schema import Quirk, Run, RunFacts

NAME = "megatron-golden"
VERSION = "1"

MARK = re.compile(r'"(start_step|end_step|step_interval)"\s*:\s*\d+')
UNITS = {
    "num-zeros": "1",
    "mem-allocated-bytes": "bytes",
    "mem-max-allocated-bytes": "bytes",
    "iteration-time": "s",
}


def matches(sample: Sample) -> bool:
    """One JSON object, in which a metric states its first step and its interval."""
    text = sample.text.lstrip()
    return text.startswith("{") and {"start_step", "step_interval"} <= set(MARK.findall(text))


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it. Steps count from 1.

    Raises:
        InputError: not JSON, or not of this form.
        NotALog: no metric has a value.
    """
    notes = Notes()
    document = load_document(path, notes)
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected one JSON object of metrics")
    cells: dict[int, dict[str, float]] = {}
    missing: list[Quirk] = []
    for metric, series in document.items():
        gaps: list[int] = []
        for step, value in _points(path, metric, series):
            at = json_step(step)
            if at is None:
                notes.add("no_step", WHOLE_FILE, "values without a whole-number step from 0 up; left out")
            elif value == "nan":
                gaps.append(at)
            elif (number := json_number(value)) is not None:
                cells.setdefault(at, {})[metric] = number
            else:
                notes.add("text_value", WHOLE_FILE, "values that are no number; left out")
        if gaps:
            missing.append(_missing(metric, gaps))
    rows = Rows()
    for step in sorted(cells):
        rows.add(0, step, cells[step])
    run = run_from(
        path, rows, notes, facts=RunFacts(steps_from=1), units=UNITS, nothing="no metric has a value"
    )
    return [Run(run.name, run.table, run.units, run.facts, quirks=(*run.quirks, *missing))]


def _points(path: Path, metric: str, series: Any) -> list[tuple[Any, Any]]:
    """The points of one metric as (step, value).

    Raises:
        InputError: not of this form.
    """
    values = series.get("values") if isinstance(series, dict) else None
    if isinstance(values, dict):
        return list(values.items())
    first, interval = (
        (json_step(series.get(key)) for key in ("start_step", "step_interval"))
        if values is not None
        else (None, None)
    )
    if not isinstance(values, list) or first is None or not interval:
        raise InputError(f"{path}: `{metric}` has no `values` with steps; is it a file of golden values?")
    return [(first + i * interval, value) for i, value in enumerate(values)]


def _missing(metric: str, steps: list[int]) -> Quirk:
    return Quirk(
        kind="text_nan",
        count=len(steps),
        where=f"{metric}, steps {min(steps)}-{max(steps)}",
        action='the text "nan" stands for a missing value; left empty',
    )
