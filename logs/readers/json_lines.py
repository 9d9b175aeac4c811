"""Reader of JSON lines: one object per line, one of its keys counts steps."""

from pathlib import Path

from logs.naming import canonical_names
from logs.parsing.json_lines import json_object, read_json_lines
from logs.parsing.several_runs import runs_of
from logs.readers import Sample
from logs.schema import Run

NAME = "json-lines"
VERSION = "3"
FALLBACK = True


def matches(sample: Sample) -> bool:
    """A JSON object in the first line, one of whose keys is known to count steps and holds no column of them."""
    row = json_object(sample.lines[0]) if sample.lines else None
    names = canonical_names([key for key, value in (row or {}).items() if not isinstance(value, dict | list)])
    return "step" in names.values()


def read(path: Path) -> list[Run]:
    """The rows as one run, or as several where a key tells them apart; see `several_runs.runs_of`.

    Raises:
        InputError: no line holds an object with a step.
    """
    return runs_of(read_json_lines(path))
