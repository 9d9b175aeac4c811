"""`maquette doctor`: what is missing is said with its remedy, and only real problems fail."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import doctor
from experiments.doctor import GIB, Check

COMMAND = Path(sys.executable).parent / "maquette"
ROOT = Path(__file__).parents[2]


def test_this_machine_is_examined_without_the_network_and_as_json() -> None:
    run = subprocess.run([COMMAND, "doctor", "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(run.stdout)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert set(states.values()) <= {"ok", "warning", "problem"}
    assert {"cpu", "memory", "disk", "python", "packages", "torch", "git", "dvc", "pip", "wandb"} <= set(
        states
    )
    assert states["packages"] == "ok"
    assert states["torch"] in ("ok", "warning")
    assert report["ok"] == (run.returncode == 0) == ("problem" not in states.values())


def test_every_problem_and_warning_has_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = doctor.examine(tmp_path)
    assert {check.name for check in checks if check.state == "problem"} >= {"git", "dvc", "profile"}
    assert all(check.remedy for check in checks if check.state != "ok")


@pytest.mark.parametrize(("free", "state"), [(1, "problem"), (3, "warning"), (50, "ok")])
def test_disk_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str) -> None:
    total = shutil.disk_usage(tmp_path).total
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(total, 0, free * GIB))  # type: ignore[attr-defined]
    assert doctor.check_disk(tmp_path).state == state


def test_memory_is_that_of_the_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{1 * GIB}\n")
    monkeypatch.setattr(doctor, "_CGROUP_MEMORY", limit)
    assert doctor.check_memory(tmp_path) == Check(
        "memory", "problem", "1.0 GiB", "at least 3 GiB are needed: close other programs, or use `--jobs 1`"
    )
    limit.write_text("max\n")
    assert doctor.check_memory(tmp_path).found != "1.0 GiB"


def test_a_compromised_lightning_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "2.6.2" if name == "lightning" else installed(name))
    check = doctor.check_packages(tmp_path)
    assert check.state == "problem"
    assert check.found == "lightning 2.6.2 is not an allowed version"


def test_a_profile_for_gpus_needs_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("profile: gpu\n")
    monkeypatch.setattr(doctor, "_has_cuda", lambda: False)
    assert doctor.check_profile(tmp_path).state == "problem"
    monkeypatch.setattr(doctor, "_has_cuda", lambda: True)
    assert doctor.check_profile(tmp_path) == Check("profile", "ok", "gpu")


def test_npm_is_asked_for_only_where_a_source_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_npm(tmp_path).state == "ok"
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "sources.yaml").write_text("sources:\n  - client: npm\n")
    assert doctor.check_npm(tmp_path).state == "problem"


def test_a_login_is_seen_without_asking_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    login = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(login))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    assert doctor.check_wandb(tmp_path).state == "warning"
    login.write_text("machine api.wandb.ai login user password secret\n")
    check = doctor.check_wandb(tmp_path)
    assert check == Check("wandb", "ok", "online, logged in")
    assert "secret" not in repr(check)
