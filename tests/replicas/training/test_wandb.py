"""What a training run leaves with W&B, and what it says when W&B cannot be used as asked."""

from collections.abc import Callable
from pathlib import Path

import pytest
import wandb
from wandb.sdk.lib.service import service_token

from experiments.configuration import InputError
from replicas.training.experiment import Experiment
from replicas.training.train import train

STEPS = 3


@pytest.fixture
def short(tiny: Callable[..., Experiment], shards_folder: Path, tmp_path: Path) -> Callable[[], bool]:
    """Trains three steps in `tmp_path`."""
    wandb.teardown()  # the session of other tests, which had other settings
    experiment = tiny(tokens=STEPS * 4 * 32)
    return lambda: train(experiment, shards_folder, tmp_path / "run", tmp_path / "state")


def test_a_run_is_logged_offline_without_a_warning(
    short: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    logged: list[tuple[str, int]] = []
    log = wandb.Run.log
    monkeypatch.setattr(wandb, "termwarn", lambda text, **_: said.append(text))
    monkeypatch.setattr(
        wandb.Run,
        "log",
        lambda run, data, *rest, **more: (
            logged.append((run.group, data["trainer/global_step"])),
            log(run, data, *rest, **more),
        ),
    )
    assert short()
    assert said == []
    assert {step for _, step in logged} == set(range(STEPS))
    assert len({group for group, _ in logged}) == 1
    assert [path.suffix for path in (tmp_path / "state/wandb").glob("wandb/offline-run-*/run-*")] == [
        ".wandb"
    ]
    assert wandb.run is None  # finished: the next run of this process is one of its own


def test_wandb_can_be_switched_off(
    short: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert short()
    assert not list((tmp_path / "state/wandb").rglob("*.wandb"))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("sometimes", "choose offline, online or disabled"),
        ("online", "WANDB_MODE=online: .*wandb login.*offline"),
    ],
)
def test_a_mode_that_cannot_be_is_the_users_mistake(
    short: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, said: str
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(InputError, match=said):
        short()
    assert not (tmp_path / "run").exists()


def test_a_service_that_has_ended_is_named(
    short: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = service_token.UnixServiceToken(parent_pid=1, path=str(tmp_path / "socket"))
    monkeypatch.setenv("WANDB_SERVICE", token.env_value)
    with pytest.raises(InputError, match=r"Failed to connect to service .*unset WANDB_SERVICE"):
        short()
