"""Reader of JSON lines: one object per line, one of its keys counts steps."""

import json
from pathlib import Path

from logs.json_lines import read_json_lines
from logs.naming import canonical_names
from logs.readers import Sample
from logs.schema import AXES, Run, unit_of

NAME = "json-lines"
VERSION = "1"
FALLBACK = True


def matches(sample: Sample) -> bool:
    """A JSON object in the first line, one of whose keys is known to count steps."""
    keys = _keys(sample.lines[0]) if sample.lines else []
    return "step" in canonical_names(keys).values()


def _keys(line: str) -> list[str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # an integer of thousands of digits is a plain ValueError
        return []
    return list(row) if isinstance(row, dict) else []


def read(path: Path) -> list[Run]:
    """The rows as one run, its name left to whoever ingests it.

    Raises:
        InputError: no line holds an object with a step.
    """
    table, quirks = read_json_lines(path, canonical_names)
    return [Run("", table, {metric: unit_of(metric) for metric in table.columns[len(AXES) :]}, quirks=quirks)]
