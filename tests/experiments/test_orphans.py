"""A stage ends when what started it is gone."""

import os
import subprocess
import sys

CHILD = """\
import signal, sys, time
from experiments.orphans import stop_with_parent
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run with SIGINT ignored
stop_with_parent(every=0.02)
print("ready", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def run_below(command: list[str], **environment: str) -> subprocess.Popen[str]:
    run = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    return run


def test_a_stage_is_interrupted_when_its_parent_is_killed() -> None:
    run = run_below([sys.executable, "-c", PARENT], DVC_STAGE="train")
    run.kill()
    out, _ = run.communicate(timeout=50)
    assert out == "interrupted\n"


def test_a_stage_is_interrupted_when_the_runner_is_gone() -> None:
    runner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run = run_below([sys.executable, "-c", CHILD], DVC_STAGE="train", MAQUETTE_RUNNER_PID=str(runner.pid))
    assert run.poll() is None
    runner.kill()
    runner.wait()
    out, _ = run.communicate(timeout=50)
    assert out == "interrupted\n"


def test_outside_of_dvc_nothing_is_watched() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DVC_STAGE"}
    code = (
        "import threading\n"
        "from experiments.orphans import stop_with_parent\n"
        "stop_with_parent()\n"
        "print(threading.active_count())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "1\n"
