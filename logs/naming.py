"""From the names that loggers use to those of the canonical log, by the table `metric_names.yaml`.

A user's own table of the same form, `metric_names.yaml` in the folder of the study or `--names FILE`, comes
before it: see `names_in_force`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import Field, model_validator

from experiments.configuration import Config, load
from logs.schema import AXES

TABLE = Path(__file__).with_name("metric_names.yaml")
OWN_TABLE = Path("metric_names.yaml")
"""Where a study keeps names of its own, seen from its folder."""


class Names(Config):
    """Canonical name -> the names that loggers use for it."""

    axes: dict[str, list[str]] = Field(default_factory=dict)
    metrics: dict[str, list[str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "Names":
        if unknown := set(self.axes) - set(AXES):
            raise ValueError(f"{', '.join(sorted(unknown))} is no axis; axes are {', '.join(AXES)}")
        if axes := set(self.metrics) & set(AXES):
            raise ValueError(f"{', '.join(sorted(axes))} is an axis and stands under `axes`")
        seen: dict[str, str] = {}
        for canonical, names in {**self.axes, **self.metrics}.items():
            for name in names:
                if other := seen.get(name.strip().lower()):
                    raise ValueError(f"`{name}` stands for both {other} and {canonical}")
                seen[name.strip().lower()] = canonical
        return self

    @cached_property
    def axis_by_alias(self) -> dict[str, str]:
        """The names that loggers use for axes, in lower case -> the axis."""
        return {name.strip().lower(): axis for axis, names in self.axes.items() for name in names}

    def over(self, other: "Names") -> "Names":
        """Both tables as one: for each canonical name the names of this one first.

        A name that both tables know stands for what this one says.
        """
        own = {
            name.strip().lower() for names in (*self.axes.values(), *self.metrics.values()) for name in names
        }

        def merged(mine: dict[str, list[str]], theirs: dict[str, list[str]]) -> dict[str, list[str]]:
            left = {key: [name for name in names if name.lower() not in own] for key, names in theirs.items()}
            return {key: [*mine.get(key, []), *left.get(key, [])] for key in {**theirs, **mine}}

        return Names(axes=merged(self.axes, other.axes), metrics=merged(self.metrics, other.metrics))


@lru_cache(maxsize=4)
def load_names(path: Path = TABLE) -> Names:
    """The table of names.

    Raises:
        InputError: an unknown key or axis, or a name that stands for two things.
    """
    return load(path, Names)


_in_force: ContextVar[Names | None] = ContextVar("names_in_force", default=None)


@contextmanager
def names_in_force(own: Path | None = None) -> Iterator[Path | None]:
    """Read logs by the user's names and then by the table's, within this context.

    Args:
        own: the user's table; without it `metric_names.yaml` in the working folder, if there is one.

    Yields:
        The user's table, or None where there is none.

    Raises:
        InputError: the user's table is missing or faulty.
    """
    path = own or (OWN_TABLE if OWN_TABLE.is_file() else None)
    names = load_names() if path is None else load(path, Names).over(load_names())
    token = _in_force.set(names)
    try:
        yield path
    finally:
        _in_force.reset(token)


def canonical_names(columns: Sequence[str], names: Names | None = None) -> dict[str, str]:
    """Each of `columns` -> its canonical name, or itself.

    Two columns never take the same name: the one nearer to the front of the table's list takes it, the other
    keeps its own.

    A lone surrogate, which JSON can spell and no file can hold, becomes U+FFFD.

    Args:
        names: the table; without it the one in force.
    """
    table = names or _in_force.get() or load_names()
    aliases = {**table.axes, **table.metrics}
    by_lower: dict[str, list[str]] = {}
    for column in columns:
        by_lower.setdefault(column.strip().lower(), []).append(column)
    result = {column: column for column in columns}
    if not "".join(columns).isascii():
        result |= _in_utf8(columns)
    for canonical, known in aliases.items():
        found = [column for alias in known for column in by_lower.get(alias.lower(), [])]
        if found and (canonical not in columns or canonical in found):
            best = canonical if canonical in found else found[0]
            result[best] = canonical
    return result


def _in_utf8(columns: Sequence[str]) -> dict[str, str]:
    """The columns whose names hold lone surrogates -> names without, none of them that of another column."""
    taken = set(columns)
    result: dict[str, str] = {}
    for column in columns:
        name = column.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if name != column:
            number = 2
            free = name
            while free in taken:
                free, number = f"{name}-{number}", number + 1
            taken.add(free)
            result[column] = free
    return result


def axis_of(column: str) -> str | None:
    """The axis that the table in force says a column of this name is, or None."""
    known = (_in_force.get() or load_names()).axis_by_alias.get(column.strip().lower())
    return known or (column if column in AXES else None)
