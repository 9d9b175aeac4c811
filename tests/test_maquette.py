"""The command itself: exit codes and what is printed where."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

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
    [(None, 0), (typer.Exit(1), 1), (InputError("a.yaml: wrong"), 2), (KeyboardInterrupt(), 130)],
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


def test_our_own_mistake_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code(monkeypatch, ZeroDivisionError())


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
