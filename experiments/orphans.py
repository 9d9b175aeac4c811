"""No stage goes on working after what started it was killed.

DVC killed with SIGKILL leaves the stage's command running, which would then write into a folder that the
next `dvc repro` believes to be its own. A leaf of the project: every package may import it.
"""

import os
import signal
import threading
import time

RUNNER_PID = "MAQUETTE_RUNNER_PID"
"""Environment variable: the process whose end also ends the stage, set by `maquette repro`."""

_STAGE = "DVC_STAGE"  # set by DVC for every command that it runs


def stop_with_parent(every: float = 1.0) -> None:
    """Under DVC, watch the parent and the runner; once one is gone, interrupt this process as Ctrl-C does.

    Training then saves a checkpoint and ends. Outside of DVC this does nothing. `every` is in seconds.
    """
    if _STAGE not in os.environ:
        return
    runner = os.environ.get(RUNNER_PID, "")
    watch = threading.Thread(
        target=_watch, args=(os.getppid(), int(runner) if runner.isdigit() else None, every), daemon=True
    )
    watch.start()


def _watch(parent: int, runner_pid: int | None, every: float) -> None:
    import psutil

    def alive(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    try:
        runner = psutil.Process(runner_pid) if runner_pid else None
        while os.getppid() == parent and (runner is None or alive(runner)):
            time.sleep(every)
    except psutil.NoSuchProcess:
        pass  # the runner ended before the watch began
    os.kill(os.getpid(), signal.SIGINT)
