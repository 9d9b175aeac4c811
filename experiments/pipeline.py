"""`maquette repro`: bring every DVC stage up to date, independent training stages side by side.

`dvc repro` runs one stage after the other. Here each is a `dvc repro --single-item STAGE` of its own, so that
stages marked `meta: {parallel: true}` in dvc.yaml share the machine; everything else runs alone. DVC decides
what is stale and keeps the books either way, and plain `dvc repro` gives the same files.
"""

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.configuration import InputError, read_yaml, write_whole
from experiments.stages import STATE, Stage, run_stages, usable_cores


def find_study(folder: Path) -> Path:
    """The nearest folder at or above `folder` with a dvc.yaml and a params.yaml.

    Raises:
        InputError: there is none.
    """
    for candidate in (folder, *folder.parents):
        if (candidate / "dvc.yaml").is_file() and (candidate / "params.yaml").is_file():
            return candidate
    raise InputError(
        f"{folder}: no dvc.yaml and params.yaml here or above; run this inside a Maquette checkout"
    )


def set_profile(study: Path, profile: str) -> None:
    """Write `profile` into the `profile:` line of params.yaml, leaving every other byte as it is.

    Raises:
        InputError: no such profile, or params.yaml has no `profile:` line.
    """
    profiles = sorted(path.stem for path in (study / "experiments" / "profiles").glob("*.yaml"))
    if profile not in profiles:
        raise InputError(
            f"--profile {profile}: no such profile; choose one of: {', '.join(profiles) or 'none'}"
        )
    path = study / "params.yaml"
    if read_yaml(path).get("profile") == profile:
        return
    text = path.read_text(encoding="utf-8")
    changed, lines = re.subn(r"(?m)^(profile:[ \t]*)[^\s#]+", rf"\g<1>{profile}", text, count=1)
    if not lines:
        raise InputError(f"{path}: no `profile:` line to change; add `profile: {profile}`")
    with write_whole(path) as stream:
        stream.write(changed)
    print(f"params.yaml: profile is now {profile}", file=sys.stderr)


def reproduce(study: Path, jobs: int | None = None) -> int:
    """Run what is not up to date in `study`, `jobs` parallel stages at a time (None: one per core).

    Returns the exit code: 0 up to date, 1 a stage failed, 2 it failed over the user's input, 130 interrupted.

    Raises:
        InputError: dvc.yaml or params.yaml is wrong, or another `maquette repro` is at work here.
    """
    os.chdir(study)
    with _only_one_here():
        try:
            stages, stale = survey()
        except Exception:  # raised again, unless it comes of a mistake in params.yaml that can be named
            _check_study()
            raise
        if not stale:
            print("everything is up to date: nothing to run", file=sys.stderr)
        else:
            ours = _check_study()
            count = f"{len(stale)} of {len(stages)} stages to bring up to date"
            print(f"{count}: {', '.join(stage.name for stage in stale)}", file=sys.stderr)
            code = run_stages(stale, jobs or usable_cores(), preload=ours and len(stale) > 2)
            if code:
                return code
    _print_result()
    return 0


def _check_study() -> bool:
    """Find what cannot be trained before anything is; False for a pipeline of someone's own making."""
    if not (Path("experiments") / "profiles").is_dir():
        return False
    from experiments.study import check_study

    check_study()
    return True


def survey() -> tuple[list[Stage], list[Stage]]:
    """All stages of the study in the current folder, and those that may have to run, in dvc.yaml's order.

    A stage may have to run if DVC finds it changed or if it comes after one that does.

    Raises:
        InputError: DVC cannot make sense of dvc.yaml, dvc.lock or params.yaml.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    for path in ("dvc.yaml", "params.yaml"):
        read_yaml(path)  # names the line of a mistake, which DVC's own message does not
    try:
        with Repo(_wait_for_lock=True) as repo:
            graph: Any = repo.index.graph
            in_order = [stage for stage in repo.index.stages if stage.addressing]
            stages = [
                Stage(
                    stage.addressing,
                    frozenset(before.addressing for before in graph.successors(stage)),
                    bool((stage.meta or {}).get("parallel", False)),
                )
                for stage in in_order
            ]
            changed = set(repo.status())
    except DvcException as error:
        cause = str(error.__cause__ or "")  # DVC keeps the key that is wrong to itself
        raise InputError(f"dvc: {error}{f': {cause}' if cause not in str(error) else ''}") from None
    return stages, stale_stages(stages, changed)


def stale_stages(stages: list[Stage], changed: set[str]) -> list[Stage]:
    """The stages of `stages` that are `changed` or come after a changed one; `needs` cut down to these."""
    after = {stage.name: {other.name for other in stages if stage.name in other.needs} for stage in stages}
    stale, frontier = set(changed), list(changed)
    while frontier:
        new = after.get(frontier.pop(), set()) - stale
        stale |= new
        frontier.extend(new)
    return [Stage(s.name, s.needs & stale, s.parallel) for s in stages if s.name in stale]


@contextmanager
def _only_one_here() -> Iterator[None]:
    """Hold the study's lock; the system drops it when this process ends, however it ends."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "repro.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another `maquette repro` is running in this folder; wait for it or stop it"
            ) from None
        yield


def _print_result() -> None:
    """Say the study's three findings, and where the report with these and the others is."""
    report, findings = Path("reports/index.html"), Path("reports/findings.json")
    if findings.is_file():
        for number, finding in enumerate(json.loads(findings.read_text(encoding="utf-8"))[:3], start=1):
            print(f"{number}. {finding}")
    if report.is_file():
        print(f"report: {report.resolve()}")
