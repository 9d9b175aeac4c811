"""Reader of JSON lines: one object per line, one of its keys counts steps."""

from pathlib import Path

from logs.naming import canonical_names
from logs.parsing.json_lines import json_object, read_json_lines
from logs.readers import Sample
from logs.schema import AXES, Run, unit_of

NAME = "json-lines"
VERSION = "2"
FALLBACK = True


def matches(sample: Sample) -> bool:
    """A JSON object in the first line, one of whose keys is known to count steps and holds no column of them."""
    row = json_object(sample.lines[0]) if sample.lines else None
    names = canonical_names([key for key, value in (row or {}).items() if not isinstance(value, dict | list)])
    return "step" in names.values()


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Raises:
        InputError: no line holds an object with a step.
    """
    table, quirks = read_json_lines(path, canonical_names)
    return [Run("", table, {metric: unit_of(metric) for metric in table.columns[len(AXES) :]}, quirks=quirks)]
