"""Runs by what a user calls them: a stored name, a prefix of such names, or the path of a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.configuration import InputError

if TYPE_CHECKING:  # the command line answers without pandas
    from logs.schema import Run


def a_path(text: str | Path) -> Path:
    """An argument or option as a path.

    Raises:
        InputError: it is empty, which would silently mean the working folder.
    """
    if not str(text):
        raise InputError("a path is empty; give one, `.` for the working folder")
    return Path(text)


def runs_at(name_or_path: str, root: Path) -> list[Run]:
    """The stored run of that name, the stored runs `NAME/...`, or the runs in the logs at that path or pattern.

    Raises:
        InputError: neither a stored run nor a log; for a public run that is not here, how to get it is said.
    """
    from logs.ingest import read_logs
    from logs.store import list_runs, read_run

    path, prefix = a_path(name_or_path), f"{name_or_path.rstrip('/')}/"
    names = [name for name in list_runs(root) if name == name_or_path or name.startswith(prefix)]
    if names:
        return [read_run(name, root) for name in names]
    if _exists(path) and not _exists(path / "run.json"):
        return list(read_logs(path).runs)
    if "*" in name_or_path:
        return list(read_logs(path).runs)
    return [stored_run(name_or_path, root)]


def run_at(name_or_path: str, root: Path) -> Run:
    """The one run that `runs_at` finds.

    Raises:
        InputError: there are several; their names are listed.
    """
    runs = runs_at(name_or_path, root)
    if len(runs) == 1:
        return runs[0]
    names = ", ".join(run.name for run in runs[:8]) + ", ..." * (len(runs) > 8)
    raise InputError(
        f"{name_or_path} holds {len(runs)} runs ({names}) where one is needed; store them with "
        "`maquette logs ingest PATH` and give one by its name"
    )


def stored_run(name: str, root: Path) -> Run:
    """The stored run `name`.

    Raises:
        InputError: there is none; for a public run, how to get it is said.
    """
    from logs.catalogue import load_catalogue
    from logs.store import list_runs, read_run

    entry = load_catalogue().get(name)
    if entry and name not in list_runs(root) and not _exists(Path(name)):
        raise InputError(f"{name} is a public run that is not here yet. To get it: {entry.how_to_get}")
    return read_run(name, root)


def _exists(path: Path) -> bool:
    """Whether there is such a path. One that cannot even be asked for counts as there: reading it says why."""
    try:
        return path.exists()
    except OSError:
        return True
