"""From files to stored runs: find the reader, read, splice, fill in what the catalogue knows, store."""

import glob
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from experiments.configuration import InputError
from logs.catalogue import Entry, load_catalogue
from logs.naming import names_in_force
from logs.parsing.opened import name_of
from logs.readers import NotALog, find_reader, take_sample
from logs.schema import Run, RunFacts, Source
from logs.splice import appended, splice
from logs.store import ROOT, write_runs
from logs.tokens import LARGEST, with_tokens


@dataclass(frozen=True)
class Reading:
    """What was found under a path: the runs, and the files that were left alone with the reason."""

    runs: tuple[Run, ...]
    left_alone: tuple[tuple[str, str], ...] = ()
    published: frozenset[str] = frozenset()
    """Names of those runs that were recognised as the public run of that name."""


def ingest(
    path: str | Path,
    name: str | None = None,
    root: Path = ROOT,
    tokens_per_step: int | None = None,
    names: Path | None = None,
) -> Reading:
    """Read every log under `path` and store the runs.

    Args:
        path: a log file, a run folder, a folder of them, or a pattern such as `runs/**/metrics.csv`.
        name: store under this name: a single log as `name`, the logs in a folder as `name/<run>`. Whatever
            was stored under `name` before is replaced whole, so a run that is gone from the folder does not
            survive.
        root: the store.
        tokens_per_step: for logs that count steps only.
        names: the user's table of metric names; see `logs.naming.names_in_force`.

    Raises:
        InputError: nothing under `path` is a log that is known here, one of them is faulty, or another log
            would be stored under the name of a public run.
    """
    reading = read_logs(path, name, tokens_per_step, names)
    for run in reading.runs:
        public = run.name.split("/")[0]
        if public in load_catalogue() and run.name not in reading.published:
            raise InputError(
                f"{path}: {public} is the name of a public run, and this log is not recognised as that run; "
                "store it under another name with --as NAME"
            )
    write_runs(reading.runs, root, below=name)
    return reading


def read_logs(
    path: str | Path,
    name: str | None = None,
    tokens_per_step: int | None = None,
    names: Path | None = None,
) -> Reading:
    """The runs under `path`, spliced and completed, without storing them. See `ingest`."""
    with names_in_force(names) as own:
        reading = _read_all(path, name, tokens_per_step)
    if own is None:
        return reading
    said = f"metric names: {own.name} of the study comes before the built-in table"
    return replace(reading, runs=tuple(replace(run, inferred=(*run.inferred, said)) for run in reading.runs))


@dataclass
class _Found:
    """What the files under a path hold: the parts of each run by its name, and what is known of these names."""

    parts: dict[str, list[Run]] = field(default_factory=dict)
    reader_at: dict[str, str] = field(default_factory=dict)
    """Of the runs that are named by their place."""
    left_alone: list[tuple[str, str]] = field(default_factory=list)

    def leave_alone(self, file: Path, error: NotALog) -> None:
        self.left_alone.append((str(file), str(error).removeprefix(f"{file}: ")))


def _read_all(path: str | Path, name: str | None, tokens_per_step: int | None) -> Reading:
    if tokens_per_step is not None and not 1 <= tokens_per_step <= LARGEST:
        raise InputError(
            f"--tokens-per-step is {tokens_per_step}; it must be at least 1 and at most {LARGEST}"
        )
    path, found = _find(path)
    if not found.parts:
        reasons = "; ".join(f"{file}: {reason}" for file, reason in found.left_alone[:3])
        raise InputError(f"{path}: no training log in it ({reasons or 'no files'})")
    alone = len(found.parts) == 1 and (path.is_file() or "." in found.parts)  # not a folder of runs
    runs: list[Run] = []
    published: set[str] = set()
    for place, parts in sorted(found.parts.items()):
        final = own = _own_name(place, path, found.parts)
        if name is not None:
            within = final.split("/", 1)[-1] if path.is_file() else final  # not named after the file as well
            final = name if alone else f"{name}/{within}"
        entry = None if place in found.reader_at else load_catalogue().get(place)
        published |= {final} if entry and entry.name == final else set()
        run = complete(parts, final, entry, tokens_per_step)
        if own.startswith(f"{place}/"):
            said = f"named {final}, for other runs lie in the folder {place}"
            run = replace(run, inferred=(*run.inferred, said))
        runs.append(run)
    return Reading(tuple(runs), tuple(found.left_alone), frozenset(published))


def _find(path: str | Path) -> tuple[Path, _Found]:
    """The file or folder that `path` names, and the runs in it."""
    home, files = files_at(path)
    found = _Found()
    for file in files:
        try:
            if file.is_symlink() and not file.exists():
                raise NotALog(
                    f"{file}: a link to nothing; fetch what it points to, with `dvc pull` for one of DVC"
                )
            reader, runs = _read_file(file, home)
        except NotALog as error:
            if file == home:
                raise
            found.leave_alone(file, error)
            continue
        together = reader.NAME if getattr(reader, "PARTS", False) else None
        for run in runs:
            if run.name in found.reader_at and (not together or found.reader_at[run.name] != together):
                raise InputError(
                    f"{file}: a second run named {run.name}; ingest them one by one with --as NAME"
                )
            if not getattr(reader, "PUBLIC", False):
                found.reader_at[run.name] = reader.NAME
            found.parts.setdefault(run.name, []).append(run)
        found.parts |= {run.name: [appended(found.parts[run.name])] for run in runs if together}
    return home, found


def _own_name(place: str, path: Path, places: Collection[str]) -> str:
    """The name of the run found at `place` below `path`: the place, `.` by the folder's own name.

    A run in whose folder other runs lie goes among them, under the folder's last name: `a` and `a/eval` are
    stored as `a/a` and `a/eval`, for a stored run holds no others.
    """
    if place == ".":
        return _clean((path if path.is_dir() else path.parent).resolve().name)
    if not any(other.startswith(f"{place}/") for other in places):
        return place
    return _unlike(f"{place}/{place.rpartition('/')[2]}", places)


def _read_file(file: Path, path: Path) -> tuple[ModuleType, list[Run]]:
    """The reader of a file and the runs in it, named: a public run as the reader names it, any other by the
    file's place below `path` and, where a file holds several, by its own name."""
    reader = find_reader(take_sample(file))
    source = _source(file, reader.NAME, reader.VERSION)
    home = file.parent if getattr(reader, "FOLDER", False) else file.with_name(name_of(file))
    place = _name_by_place(home, path)
    names: dict[str, None] = {}
    runs: list[Run] = []
    found = reader.read(file)
    if not any(run.metrics for run in found):
        raise NotALog(f"{file}: no metric is logged in it, only steps; nothing to read")
    for run in found:
        name = run.name
        if not getattr(reader, "PUBLIC", False):
            own = _clean(run.name) if len(found) > 1 else ""
            name = "/".join(part for part in (place, own) if part not in ("", "."))
            name = _unlike(name or place, names)
        names[name] = None
        runs.append(replace(run, name=name, sources=(source,)))
    return reader, runs


def _unlike(name: str, names: Collection[str]) -> str:
    """`name`, numbered if it is among `names` already: different names may be one once they are clean."""
    number = 2
    free = name
    while free in names:
        free, number = f"{name}-{number}", number + 1
    return free


def files_at(path: str | Path) -> tuple[Path, Iterator[Path]]:
    """The file or folder that `path` names, and the files in it, sorted; hidden ones are passed over.

    A pattern names the folder above its first `*`, `?` or `[`, and of that folder the files that match; of a
    folder that matches, all files.

    Raises:
        InputError: nothing is there, or it may not be read.
    """
    path = Path(path)
    try:
        if path.exists():
            return path, files_under(path)
        if not glob.has_magic(str(path)):
            raise InputError(f"{path}: no such file or folder")
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise InputError(f"{path}: no file matches this pattern")
    folder = next(above for above in path.parents if not glob.has_magic(str(above)))
    return folder, iter(dict.fromkeys(file for match in found for file in files_under(match)))


def files_under(path: Path) -> Iterator[Path]:
    """`path` itself, or the files in the folder and below it, sorted; hidden ones are passed over.

    A link to a file is read, for DVC may link to its cache; a link to a folder is not entered.

    Raises:
        InputError: a folder may not be read; its runs would be missed, and stored ones of that name lost.
    """
    if not path.is_dir():
        yield path
        return

    def refused(error: OSError) -> None:
        raise InputError(
            f"{error.filename}: cannot be read: {error.strerror}; make it readable, or ingest the others by a pattern"
        ) from None

    for folder, subfolders, names in os.walk(path, onerror=refused):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(folder, name)


def _name_by_place(home: Path, path: Path) -> str:
    """A run's name from where it lies below the ingested `path`; `.` if it is the ingested folder itself."""
    place = home.relative_to(path if path.is_dir() else path.parent)
    return "/".join(_clean(part) for part in place.parts) or "."


def _clean(part: str) -> str:
    """A part of a path as a part of a run's name, which has fewer letters to choose from."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", part).lstrip("._-") or "run"


def _source(path: Path, reader: str, version: str) -> Source:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Source(path=_portable(path), sha256=digest, reader=reader, reader_version=version)


def _portable(path: Path) -> str:
    """The path as seen from the working folder, or else the file's name: stores hold no machine's folders."""
    try:
        return Path(os.path.abspath(path)).relative_to(Path.cwd()).as_posix()  # links are not followed
    except ValueError:
        return path.name


def complete(parts: list[Run], name: str, entry: Entry | None, tokens_per_step: int | None = None) -> Run:
    """The parts of one run spliced, with the catalogue's facts and with tokens filled in from steps.

    Args:
        parts: what the readers found.
        name: name of the result.
        entry: what the catalogue says of the run, if the reader recognised it as a public one.
        tokens_per_step: from the user.

    Raises:
        InputError: the user's tokens per step contradict what is known of the run.
    """
    run = splice(parts, name, entry.forks if entry else ())
    if entry:
        run = _with_catalogue(run, entry)
    known = run.facts.tokens_per_step
    if tokens_per_step is not None and known not in (None, tokens_per_step):
        raise InputError(f"{name}: --tokens-per-step is {tokens_per_step}, but the run states {known}")
    if known is None and tokens_per_step is not None:
        run = replace(run, facts=RunFacts(**{**run.facts.model_dump(), "tokens_per_step": tokens_per_step}))
    return with_tokens(run)


def _with_catalogue(run: Run, entry: Entry) -> Run:
    sources = tuple(
        Source(**{**source.model_dump(), "licence": entry.licence.value, "citation": entry.address.value})
        for source in run.sources
    )
    units = {
        **run.units,
        **{name: metric.unit for name, metric in entry.metrics.items() if name in run.units},
    }
    return replace(run, facts=entry.run_facts, sources=sources, units=units)
