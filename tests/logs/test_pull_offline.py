"""`maquette logs pull` where the service cannot be reached: it says so soon, and what it tries meanwhile."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logs import wandb_client
from logs.cli import app
from logs.pull import pull
from logs.wandb_client import OFFLINE_TRIES, REACH, WAITS, Connection, UnreachableError

RUN = "marin-community/marin_moe/rav-ladder-d768-v2"


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port of this machine at which nobody listens."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def refused(tmp_path: Path) -> str:
    with pytest.raises(UnreachableError) as caught:
        pull("marin-d768", tmp_path / "runs", tmp_path / "pulls", connect=lambda: Connection([0.0] * 9))
    assert not (tmp_path / "runs").exists()
    return str(caught.value)


def test_a_service_that_takes_no_connection_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed_port}")
    why = f"127.0.0.1 (port {closed_port}) cannot be reached (Connection refused); see to the network"
    assert refused(tmp_path) == f"{RUN}: its state: {why}; given up after {OFFLINE_TRIES} tries"
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"{RUN}: its state: {why}; try {tried} of {OFFLINE_TRIES} failed, the next one in 0 s"
        for tried in range(1, OFFLINE_TRIES)
    ]
    assert sum(WAITS[: OFFLINE_TRIES - 1]) + OFFLINE_TRIES * REACH < 45


def test_a_service_whose_name_is_unknown_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://api.invalid")
    text = refused(tmp_path)
    assert "api.invalid (port 80) cannot be reached" in text
    assert text.endswith(f"given up after {OFFLINE_TRIES} tries")


def test_a_proxy_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://api.invalid")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port}")
    assert f"the proxy 127.0.0.1 (port {closed_port}) cannot be reached" in refused(tmp_path)


def test_the_command_ends_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setattr(wandb_client.Connection.__init__, "__defaults__", ((0.0,),))
    arguments = ["logs", "pull", "marin-d768", "--root", str(tmp_path / "runs"), "--cache", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (1, "")
    first, last = result.stderr.splitlines()
    assert "try 1 of 2 failed" in first
    assert last.endswith("given up after 2 tries. What came is kept; the same command goes on from there")
