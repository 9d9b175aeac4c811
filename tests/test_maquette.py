"""The command itself: exit codes and what is printed where."""

import errno
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import maquette
from experiments.configuration import InputError

COMMAND = Path(sys.executable).parent / "maquette"


def exit_code(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> int:
    """What `maquette work` exits with when the command raises `error`."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)

    @app.command()
    def work() -> None:
        if error:
            raise error

    monkeypatch.setattr(maquette, "command_line", lambda: app)
    monkeypatch.setattr(sys, "argv", ["maquette", "work"])
    with pytest.raises(SystemExit) as caught:
        maquette.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (typer.Exit(1), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (InputError("a.yaml: wrong"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_way_to_end_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int
) -> None:
    assert exit_code(monkeypatch, error) == code


def test_the_users_mistake_is_one_line_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code(monkeypatch, InputError("a.yaml: wrong"))
    assert capsys.readouterr() == ("", "maquette: a.yaml: wrong\n")


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk."""
    table = tmp_path / "points.csv"
    table.write_text("n,d,loss\n" + "".join(f"{10**k},{20 * 10**k},{5 - k / 4}\n" for k in range(4, 10)))
    run = subprocess.run(
        [
            COMMAND,
            "fit",
            "power-law",
            table,
            "--n",
            "n",
            "--d",
            "d",
            "--loss",
            "loss",
            "--out",
            tmp_path / "fit.json",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut off, and break the next import
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1:] == [
        "maquette: File too large; see to that disk and run the same command again"
    ]
    assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == [table]


def test_our_own_mistake_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code(monkeypatch, ZeroDivisionError())


INTERRUPTED = "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["heeded", "ignored"])
@pytest.mark.parametrize("body", ["import hostile", INTERRUPTED], ids=["in an import", "at work"])
def test_an_interrupted_command_ends_without_a_word(tmp_path: Path, body: str, before: Any) -> None:
    """Libraries answer an interruption of their import with errors of their own; a script's `&` has it ignored."""
    (tmp_path / "hostile.py").write_text(
        f"import os, signal, time\ntry:\n    {INTERRUPTED}\nexcept BaseException:\n    raise RecursionError\n"
    )
    (tmp_path / "ours.py").write_text(
        f"import os, signal, time, typer\napp = typer.Typer()\n@app.command()\ndef work():\n    {body}\n"
    )
    code = (
        "import maquette, sys; maquette.COMMAND_LINES = ('ours',); sys.argv[1:] = ['work']; maquette.main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(maquette.__file__).parent}"},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, before),
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_a_reader_that_stops_reading_is_no_error() -> None:
    run = subprocess.Popen([COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None
    run.stdout.close()
    _, err = run.communicate(timeout=120)
    assert b"Traceback" not in err
    assert run.returncode != -signal.SIGPIPE


def test_version_is_the_installed_one() -> None:
    run = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"maquette \d+\.\d+\.\d+\n", run.stdout)


def test_an_unknown_command_is_the_users_mistake() -> None:
    run = subprocess.run([COMMAND, "nonsense"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stdout == ""


def test_telemetry_is_off_but_the_user_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("DVC_NO_ANALYTICS", raising=False)
    exit_code(monkeypatch, None)
    assert os.environ["WANDB_MODE"] == "online"
    assert os.environ["DVC_NO_ANALYTICS"] == "1"
