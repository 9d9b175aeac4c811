"""Run DVC stages as processes of their own, side by side where they allow it, and stop them without loss."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import psutil

from experiments.board import DONE, FAILED, STOPPED, UNCHANGED, Board, board
from experiments.orphans import RUNNER_PID
from experiments.preloaded import preloaded
from experiments.progress import PROGRESS_FILE, read_standing
from experiments.telemetry import TELEMETRY_OFF

STATE = Path(".maquette")
"""Untracked state inside the study's folder; git and DVC ignore it."""

TAIL_LINES = 25

# Importing DVC takes longer than most of what it does here: on Linux one process imports it once and each
# stage is forked from that one. Other systems import it anew, as forking there upsets their libraries.
_WHAT_DVC_IMPORTS = [
    "dvc.analytics",
    "dvc.cli",
    "dvc.commands.repro",
    "dvc.data_cloud",
    "dvc.ignore",
    "dvc.repo",
    "dvc.rwlock",
    "dvc.scm",
    "dulwich.ignore",
    "dulwich.worktree",
    "ruamel.yaml",
    "scmrepo.git.backend.dulwich",
]
_PROCESSES = ForkServerContext() if sys.platform == "linux" else SpawnContext()
_POLL = 0.1  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml: its name, the stages it waits for, whether others may run beside it."""

    name: str
    needs: frozenset[str] = frozenset()
    parallel: bool = False


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def next_stage(waiting: list[Stage], running: list[Stage], done: Iterable[str], jobs: int) -> Stage | None:
    """The first stage of `waiting` that may start now, or None.

    Its needs are all `done`; it has the machine for itself unless it and all that runs are parallel, and
    then at most `jobs` run together. Parallel stages start in the order given: put the longest first.
    """
    if running and (len(running) >= jobs or not all(stage.parallel for stage in running)):
        return None
    ready = (stage for stage in waiting if stage.needs <= set(done))
    return next((stage for stage in ready if stage.parallel or not running), None)


@dataclass
class _Job:
    """A stage at work: its `dvc repro` process, since when, and which processes below were signalled.

    `dvc` is the same process, known by more than a number that another process may get; None if it is gone.
    """

    stage: Stage
    process: BaseProcess
    dvc: psutil.Process | None
    log: Path
    progress: Path
    began: float
    signalled: set[tuple[int, int]] = field(default_factory=set)

    def signal(self, number: int) -> None:
        """Send `number` once to every process that the stage's command consists of.

        DVC itself is left alone: it may be writing dvc.lock, and ends by itself once its command has.
        """
        try:
            below = self.dvc.children(recursive=True) if self.dvc else []
        except psutil.NoSuchProcess:
            return
        for process in below:
            if (process.pid, number) not in self.signalled:
                self.signalled.add((process.pid, number))
                try:
                    process.send_signal(number)
                except psutil.NoSuchProcess:
                    continue

    def tail(self) -> str:
        """The last lines of the stage's output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:])

    def exit_code(self) -> int:
        """What the stage's command itself returned, as DVC reports it; 1 if DVC does not say."""
        said = re.findall(r"exited with (\d+)$", self.tail(), re.MULTILINE)
        return int(said[-1]) if said else 1


def run_stages(stages: list[Stage], jobs: int, preload: bool = False) -> int:
    """Run `stages`, given in an order that suits their needs, at most `jobs` parallel ones together.

    After a failure nothing new starts, and what runs is stopped as by Ctrl-C: it saves, to go on next time.

    Args:
        preload: whether `maquette` commands are forked from a process that has imported what they need.

    Returns 0, or 1 if a stage failed, 2 if it failed over the user's input, 130 if interrupted.
    """
    if isinstance(_PROCESSES, ForkServerContext):
        _PROCESSES.set_forkserver_preload(["__main__", *_WHAT_DVC_IMPORTS])
    waiting, running, done = list(stages), list[_Job](), set[str]()
    code = 0
    with preloaded(preload) as forking, _interrupts() as interrupts, board(len(stages)) as shown:
        while running or (waiting and not code):
            for job in [job for job in running if job.process.exitcode is not None]:
                running.remove(job)
                if job.process.exitcode == 0:
                    done.add(job.stage.name)
                    shown.ended(job.stage.name, _outcome(job), time.monotonic() - job.began)
                else:
                    shown.ended(job.stage.name, STOPPED if code else FAILED, time.monotonic() - job.began)
                    code = code or _failure(job, shown, len(running))
            if interrupts and code != 130:
                code = 130
                shown.say("stopping: each stage saves what it has; Ctrl-C again kills it instead")
            if code:
                for job in running:
                    job.signal(signal.SIGKILL if len(interrupts) > 1 else signal.SIGINT)
            while not code and (stage := next_stage(waiting, [job.stage for job in running], done, jobs)):
                waiting.remove(stage)
                running.append(_start(stage, forking))
                shown.started(stage.name)
            _show_progress(running, shown)
            time.sleep(_POLL)
        if code == 130:
            shown.say("interrupted; the same command goes on from here")
    return code


def _start(stage: Stage, forking: dict[str, str]) -> _Job:
    file_name = stage.name.replace("/", "-")
    log, progress = STATE / "stage-logs" / f"{file_name}.log", STATE / "progress" / f"{file_name}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    progress.parent.mkdir(parents=True, exist_ok=True)
    progress.unlink(missing_ok=True)
    environment = {
        **TELEMETRY_OFF,
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        PROGRESS_FILE: str(progress.resolve()),
        RUNNER_PID: str(os.getpid()),
        **forking,
    }
    log.write_bytes(b"")
    process = _PROCESSES.Process(target=_dvc_repro, args=(stage.name, log, environment), daemon=True)
    process.start()
    try:
        dvc = psutil.Process(process.pid)
    except psutil.NoSuchProcess:
        dvc = None
    return _Job(stage, process, dvc, log, progress, time.monotonic())


def _dvc_repro(stage: str, log: Path, environment: dict[str, str]) -> None:
    """Be `dvc repro --single-item STAGE`, in a process of its own."""
    os.setsid()  # the terminal's Ctrl-C comes to `run_stages` alone; `_Job.signal` hands it on
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.environ.update(environment)
    sys.argv = ["dvc", "--wait-for-lock", "repro", "--single-item", stage]  # DVC notes it in its lock
    from dvc.cli import main

    sys.exit(main(sys.argv[1:]))


def _outcome(job: _Job) -> str:
    return UNCHANGED if "didn't change, skipping" in job.tail() else DONE


def _failure(job: _Job, shown: Board, others: int) -> int:
    """Show why `job` failed; returns the exit code for the whole run."""
    shown.say(job.tail())
    shown.say(f"{job.stage.name} failed; all of its output: {job.log}")
    if others:
        shown.say(f"stopping {others} more: what they have is saved and the next run goes on from there")
    return 2 if job.exit_code() == 2 else 1


def _show_progress(running: list[_Job], shown: Board) -> None:
    for job in running:
        standing = read_standing(job.progress)
        if standing:
            shown.update(job.stage.name, standing)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals to stop that have come in so far, collected instead of acted on."""
    came: list[int] = []

    def collect(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
    before = {number: signal.signal(number, collect) for number in heeded}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
