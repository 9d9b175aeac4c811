"""From the names that loggers use to those of the canonical log, by the table `metric_names.yaml`."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import model_validator

from experiments.configuration import Config, load
from logs.schema import AXES

TABLE = Path(__file__).with_name("metric_names.yaml")


class Names(Config):
    """Canonical name -> the names that loggers use for it."""

    axes: dict[str, list[str]]
    metrics: dict[str, list[str]]

    @model_validator(mode="after")
    def _consistent(self) -> "Names":
        if unknown := set(self.axes) - set(AXES):
            raise ValueError(f"{', '.join(sorted(unknown))} is no axis; axes are {', '.join(AXES)}")
        seen: dict[str, str] = {}
        for canonical, names in {**self.axes, **self.metrics}.items():
            for name in names:
                if other := seen.get(name.lower()):
                    raise ValueError(f"`{name}` stands for both {other} and {canonical}")
                seen[name.lower()] = canonical
        return self

    @property
    def canonical(self) -> dict[str, str]:
        """Name in lower case -> canonical name."""
        return {name.lower(): key for key, names in {**self.axes, **self.metrics}.items() for name in names}


@lru_cache(maxsize=4)
def load_names(path: Path = TABLE) -> Names:
    """The table of names.

    Raises:
        InputError: an unknown key or axis, or a name that stands for two things.
    """
    return load(path, Names)


def canonical_names(columns: Sequence[str], names: Names | None = None) -> dict[str, str]:
    """Each of `columns` -> its canonical name, or itself.

    Two columns never take the same name: the one nearer to the front of the table's list takes it, the other
    keeps its own.
    """
    table = names or load_names()
    aliases = {**table.axes, **table.metrics}
    by_lower: dict[str, list[str]] = {}
    for column in columns:
        by_lower.setdefault(column.strip().lower(), []).append(column)
    result = {column: column for column in columns}
    for canonical, known in aliases.items():
        found = [column for alias in known for column in by_lower.get(alias.lower(), [])]
        if found and (canonical not in columns or canonical in found):
            best = canonical if canonical in found else found[0]
            result[best] = canonical
    return result
