"""A command handed to the process that forks behaves as if it had run by itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import preloaded as module
from experiments.preloaded import PRELOADED, preloaded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux only")

COMMAND = """
import signal, sys
from experiments.preloaded import run_preloaded
signal.signal(signal.SIGINT, signal.default_int_handler)  # as `maquette` does
code = run_preloaded()
print("by itself" if code is None else f"handed over: {code}", flush=True)
"""
PATIENCE = 30  # seconds


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of commands, with a server that imports little and runs what `$PROGRAM` says."""
    program = (
        "import os; from experiments import preloaded as p; p.MODULES = ('json',); "
        "p.serve() and exec(os.environ['PROGRAM'])"
    )
    monkeypatch.setattr(module, "_PROGRAM", program)
    with preloaded() as environment:
        folder = Path(environment[PRELOADED])
        while not (folder / "ready").exists():
            time.sleep(0.01)
        yield environment
    assert not folder.exists()


def start(forking: dict[str, str], program: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "report", "--out", "x"],
        env=os.environ | forking | {"PROGRAM": program, "PYTHONPATH": os.getcwd()},
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_arguments_folder_environment_and_streams_are_the_commands(
    forking: dict[str, str], tmp_path: Path
) -> None:
    program = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), 'MAQUETTE_PRELOADED' in os.environ, input()); "
        "print('went wrong', file=sys.stderr); sys.exit(7)"
    )
    out, error = start(forking, program, tmp_path).communicate("typed\n", timeout=PATIENCE)
    assert out == f"['report', '--out', 'x'] {tmp_path} False typed\nhanded over: 7\n"
    assert error == "went wrong\n"


def test_commands_run_side_by_side(forking: dict[str, str], tmp_path: Path) -> None:
    """Each waits for the other's file."""
    program = (
        "import os, pathlib, time; mine, other = os.environ['FILES'].split(); pathlib.Path(mine).touch()\n"
        "while not pathlib.Path(other).exists(): time.sleep(0.01)"
    )
    both = [start(forking | {"FILES": files}, program, tmp_path) for files in ("a b", "b a")]
    assert [run.communicate(timeout=PATIENCE)[0] for run in both] == ["handed over: 0\n"] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 5), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_signals_reach_the_fork(
    forking: dict[str, str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    program = (
        "import time\ntry:\n  print('at work', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: exit(5)"
    )
    run = start(forking, program, tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "at work\n"
    run.send_signal(number)
    assert run.communicate(timeout=PATIENCE)[0] == f"handed over: {code}\n"


def test_a_killed_command_takes_its_fork_along(forking: dict[str, str], tmp_path: Path) -> None:
    run = start(forking, "import os, time; print(os.getpid(), flush=True); time.sleep(60)", tmp_path)
    assert run.stdout is not None
    fork = int(run.stdout.readline())
    run.kill()
    assert run.communicate(timeout=PATIENCE)[0] == ""  # the fork held the other end of the pipe
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{fork}").exists():  # until the server has taken note of its end
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_a_server_that_is_ready_a_command_runs_by_itself(tmp_path: Path) -> None:
    for environment in ({}, {PRELOADED: str(tmp_path)}):
        assert start(environment, "", tmp_path).communicate(timeout=PATIENCE)[0] == "by itself\n"
    (tmp_path / "ready").touch()  # left by a server that is gone
    assert start({PRELOADED: str(tmp_path)}, "", tmp_path).communicate(timeout=PATIENCE)[0] == "by itself\n"


def test_a_server_that_cannot_import_leaves_commands_to_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_PROGRAM", "raise ImportError")
    with preloaded() as environment:
        time.sleep(0.2)
        Path(environment[PRELOADED], "ready").touch()
        assert start(environment, "", tmp_path).communicate(timeout=PATIENCE)[0] == "by itself\n"
