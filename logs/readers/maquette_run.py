"""Reader of Maquette's own run folders: `metrics.jsonl` beside `facts.json`."""

import json
from dataclasses import replace
from pathlib import Path

from experiments.configuration import InputError, parse
from logs.parsing.json_lines import read_json_lines
from logs.parsing.tables import run_of
from logs.readers import Sample
from logs.schema import Run, RunFacts

NAME = "maquette-run"
VERSION = "1"
FOLDER = True


def matches(sample: Sample) -> bool:
    """JSON lines with a step, in a folder that states the run's facts."""
    rows = any(line.startswith("{") and '"step"' in line for line in sample.lines[:20])
    return rows and (sample.path.parent / "facts.json").is_file()


def read(path: Path) -> list[Run]:
    """The run in the folder of `path`, its name left to whoever ingests it.

    Raises:
        InputError: no row with a step, or `facts.json` is not what training writes.
    """
    table = read_json_lines(path)
    return [replace(run_of(table.frame, table.quirks), facts=read_facts(path.parent))]


def read_facts(folder: Path) -> RunFacts:
    """The facts that training wrote beside its log."""
    path = folder / "facts.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from None
    return parse(RunFacts, data, str(path))
