"""The catalogue of public runs: one YAML file per run in `catalogue/`, every fact with its citation."""

import re
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from experiments.configuration import Config, InputError, load, parse
from logs.schema import UNITS, RunFacts
from logs.splice import Fork

FOLDER = Path(__file__).with_suffix("")

EventKind = Literal[
    "launch", "schedule", "data", "model", "systems", "ops", "dynamics", "incident", "snapshot", "end"
]  # fmt: skip
"""`data`, `model` and `schedule` change what is trained; `incident` is a divergence, spike or loss of work."""

RUN_ID = re.compile(r"[\w.+-]+")


class Cited(Config):
    """A value and where it is published."""

    value: Any
    source: str = Field(min_length=1)


class CitedText(Config):
    """A text and where it is published."""

    value: str = Field(min_length=1)
    source: str = Field(min_length=1)


class SpliceRange(Config):
    """A public run: it forked from `parent` and owns the steps `first <= step < end`, the last one all."""

    run: str
    first: int = Field(ge=0)
    end: int | None = None
    parent: str | None = None
    source: str = Field(min_length=1)


class Event(Config):
    """Something that happened to a run, or is planned, at a step."""

    step: int = Field(ge=0)
    kind: EventKind
    what: str
    source: str = Field(min_length=1)
    date: str | None = None
    planned: bool = False


class Metric(Config):
    """A metric of the canonical log: how the source calls it, by what its values are multiplied to have `unit`,
    and what it means there."""

    logged_as: str
    unit: str
    meaning: str
    source: str = Field(min_length=1)
    scale: float = 1.0


class WandbProject(Config):
    """The public W&B project of a run; the ids of its runs are those of the segments."""

    entity: str = Field(pattern=r"^[\w.-]+$")
    project: str = Field(pattern=r"^[\w.-]+$")
    source: str = Field(min_length=1)


class MeaningChange(Config):
    """From `step` on a metric means something else than before."""

    metric: str
    step: int = Field(ge=0)
    what: str
    source: str = Field(min_length=1)


class Entry(Config):
    """One public run. Without `wandb` it cannot be pulled, and `how_to_get` says what can be done instead."""

    name: str
    address: CitedText
    licence: CitedText
    how_to_get: str = Field(min_length=1)
    wandb: WandbProject | None = None
    facts: dict[str, Cited]
    segments: tuple[SpliceRange, ...] = ()
    metrics: dict[str, Metric] = Field(default_factory=dict)
    events: tuple[Event, ...] = ()
    meaning_changes: tuple[MeaningChange, ...] = ()
    status: CitedText | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Entry":
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.end != after.first:
                raise ValueError(
                    f"segment {before.run} ends at {before.end} but {after.run} begins at {after.first}"
                )
        if self.wandb and not self.segments:
            raise ValueError("`wandb` names a project but no segment names a run of it")
        if self.wandb and (odd := [s.run for s in self.segments if not RUN_ID.fullmatch(s.run)]):
            raise ValueError(
                f"segment {odd[0]!r} is no id of a W&B run: letters, digits, `.`, `_`, `+`, `-` only"
            )
        if self.segments and self.segments[-1].end is not None:
            raise ValueError(f"segment {self.segments[-1].run} is the last one and must not have an `end`")
        known = {segment.run for segment in self.segments}
        for segment in self.segments:
            if segment.parent is not None and segment.parent not in known:
                raise ValueError(
                    f"segment {segment.run} has the parent {segment.parent}, which is no segment"
                )
        for name, metric in self.metrics.items():
            if metric.unit not in UNITS:
                raise ValueError(f"metric {name} has the unit {metric.unit!r}; allowed: {', '.join(UNITS)}")
        for change in self.meaning_changes:
            if change.metric not in self.metrics:
                raise ValueError(f"meaning change of {change.metric}, which is not among the metrics")
        return self

    @property
    def run_facts(self) -> RunFacts:
        """The facts as every `Run` carries them.

        Raises:
            InputError: a fact that `RunFacts` does not know, or of the wrong type.
        """
        return parse(
            RunFacts, {key: fact.value for key, fact in self.facts.items()}, f"catalogue entry {self.name}"
        )

    @property
    def forks(self) -> list[Fork]:
        """The segments as `logs.splice` takes them."""
        return [Fork(segment.run, segment.first, segment.parent) for segment in self.segments]


@lru_cache(maxsize=4)
def load_catalogue(folder: Path = FOLDER) -> dict[str, Entry]:
    """All entries by name, sorted.

    Raises:
        InputError: a file with an unknown key, a wrong type or a contradiction, named with file and field.
    """
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.yaml")):
        entry = load(path, Entry)
        if entry.name != path.stem:
            raise InputError(f"{path}: `name` is {entry.name!r}; it must be the file's name, {path.stem!r}")
        _ = entry.run_facts  # a wrong fact shows here, not when the run is used
        entries[entry.name] = entry
    return entries


def lookup(name: str, folder: Path = FOLDER) -> Entry:
    """The entry of that name.

    Raises:
        InputError: there is none; similar names are given, or else all of them.
    """
    entries = load_catalogue(folder)
    if name in entries:
        return entries[name]
    close = get_close_matches(name, entries, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"it holds {', '.join(entries)}"
    raise InputError(f"no public run {name!r} in the catalogue; {hint} `maquette logs list` shows all")
