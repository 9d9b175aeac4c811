"""One process that has imported what stages need, and forks for each `maquette` command that asks for it.

Importing PyTorch and Lightning takes longer than a small training. `maquette repro` starts such a process, and
a stage's command hands itself over: its arguments, environment, folder, and its input and output. It stays, passes
on the signals that it gets, and ends as its twin does; killed, it takes the twin along. On Linux without a GPU only:
forking upsets the libraries of other systems, and a GPU's driver. There, and wherever no such process answers, a
command runs by itself.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

PRELOADED = "MAQUETTE_PRELOADED"
"""Environment variable: the folder with the socket of the process that forks, set by `maquette repro`."""

MODULES = (
    "replicas.training.train",
    "wandb",
    "logs.ingest",
    "analysis.compare",
    "analysis.fit",
    "analysis.ablation",
    "analysis.report.overlay",
    "analysis.report.page",
    "analysis.report.pictures",
)
"""What takes long to import."""

WORTH_WAITING_FOR = ("train",)
"""Commands that need nearly all of `MODULES`; any other does not wait for the imports to finish."""

_GPUS = ("/dev/nvidiactl", "/dev/kfd")  # there if a GPU's driver is
_POLL = 0.05  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRAM = "from experiments.preloaded import serve; serve() and __import__('maquette').main()"


@contextmanager
def preloaded(wanted: bool = True) -> Iterator[dict[str, str]]:
    """Have the process that forks, if `wanted`; yields what the environment of a command needs to find it."""
    if not wanted or sys.platform != "linux" or any(Path(device).exists() for device in _GPUS):
        yield {}
        return
    folder = Path(tempfile.mkdtemp(prefix="maquette-"))  # of this user alone; a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(listener.fileno()), str(folder)],
            stdin=subprocess.PIPE,  # its end tells the server that this process is gone
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    try:
        yield {PRELOADED: str(folder)}
    finally:
        server.terminate()
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def run_preloaded() -> int | None:
    """Run this process's command in a fork of the process that has everything imported.

    Returns:
        The exit code, 128 and more if a signal ended it; None if the command has to run here.
    """
    folder = os.environ.get(PRELOADED)
    if not folder or not (sys.argv[1:2] == [*WORTH_WAITING_FOR] or Path(folder, "ready").exists()):
        return None
    request = json.dumps({"argv": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(str(Path(folder, "socket")))
        except OSError:
            return None
        with _signals_passed_on(server):
            try:
                socket.send_fds(server, [len(request).to_bytes(8)], [0, 1, 2])
                server.sendall(request)
                if not server.recv(1):
                    return None  # it ended without having started the command
            except OSError:
                return None
            try:
                answer = server.recv(16)
            except OSError:
                answer = b""
    if not answer:
        print("maquette: the process that ran this command ended before it did", file=sys.stderr)
        return 1
    status = int(answer)
    return status if status >= 0 else 128 - status


@contextmanager
def _signals_passed_on(server: socket.socket) -> Iterator[None]:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            server.send(bytes([number]))

    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve() -> bool:
    """Import everything, then fork for each command that comes; `sys.argv` holds the listener and its folder.

    Returns:
        True in a fork, which now is the process that the command asked for, in all but its parent.
        False in the server, once the process that started it is gone or told it to stop.
    """
    listener, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    os.environ.pop(PRELOADED, None)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what every fork shares should stay shared
    (folder / "ready").touch()
    commands: dict[socket.socket, int] = {}
    started_by: Any = sys.stdin
    while started_by or commands:
        waiting = [listener, *([started_by] if started_by else []), *commands]
        for ready in select.select(waiting, [], [], _POLL if commands else None)[0]:
            if ready is started_by:
                started_by = None
            elif ready is listener:
                command, _ = listener.accept()
                request, files = _receive(command)
                if not request:
                    command.close()
                    continue
                pid = os.fork()
                if not pid:
                    for open_socket in (listener, command, *commands):
                        open_socket.close()
                    _become(json.loads(request), files)
                    return True
                for file in files:
                    os.close(file)
                commands[command] = pid
            else:
                _signal(ready, commands[ready])
        _answer(commands)
    return False


def _receive(command: socket.socket) -> tuple[bytes, list[int]]:
    """The request, acknowledged, and the files that become stdin, stdout and stderr; b"" if the command is gone."""
    head, files, _, _ = socket.recv_fds(command, 8, 3)
    missing, request = int.from_bytes(head), b""
    with contextlib.suppress(OSError):
        while missing and (part := command.recv(missing)):
            request, missing = request + part, missing - len(part)
        if not missing:
            command.send(b"*")
            return request, files
    return b"", files


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take on the command's arguments, environment, folder and files."""
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(request["folder"])
    sys.argv = request["argv"]
    os.environ.clear()
    os.environ.update(request["environment"])
    del os.environ[PRELOADED]  # what this command starts in its turn is none of the runner's


def _signal(command: socket.socket, pid: int) -> None:
    """Pass on what the command was signalled; if it is gone, whatever it ran must not go on."""
    try:
        numbers = command.recv(16)
    except OSError:
        numbers = b""
    for number in numbers or bytes([signal.SIGKILL]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _answer(commands: dict[socket.socket, int]) -> None:
    """Tell each command whose fork has ended how it did."""
    for command, pid in list(commands.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError):
                command.send(str(os.waitstatus_to_exitcode(status)).encode())
            command.close()
            del commands[command]
