"""`maquette repro` on a small study with real DVC: order, no-op, failure, Ctrl-C, SIGKILL, profiles.

The stages write what they do into a journal and wait for each other by it, so that no test depends on time.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from experiments.configuration import InputError
from experiments.pipeline import find_study, set_profile, survey

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 120  # seconds until a test gives up on a process that hangs

DVC_YAML = """\
stages:
  corpus:
    cmd: python work.py corpus data/corpus
    deps: [work.py]
    outs: [data/corpus]
  train:
    foreach: [large, small]
    do:
      cmd: python work.py train-${item} runs/${item}
      deps: [data/corpus]
      params: [weight]
      outs: ["runs/${item}"]
      meta: {parallel: true}
  report:
    cmd: python work.py report reports
    deps: [runs/large, runs/small]
    outs: [reports/index.html, reports/findings.json]
"""

PARAMS = "# a comment\nprofile: laptop  # or smoke\nweight: 0.2\n"

WORK = """\
import json, os, signal, sys, time
from pathlib import Path

from experiments.orphans import stop_with_parent
from experiments.progress import progress

name, out = sys.argv[1], Path(sys.argv[2])
journal, checkpoint = Path(".maquette/journal"), Path(".maquette") / f"checkpoint-{name}"

def write(event):
    with journal.open("a") as stream:
        stream.write(f"{event} {name}\\n")

def wait_for(event):
    while event not in journal.read_text().splitlines():
        time.sleep(0.02)

stop_with_parent(every=0.05)
write("resume" if checkpoint.exists() else "start")
with progress(name, 4, "steps") as advance:
    advance(2, note="half")
    if os.environ.get("TOY_MEET") and name.startswith("train"):
        wait_for("start train-small" if name == "train-large" else "start train-large")
    if os.environ.get("TOY_FAIL") == name:
        print("the reason is written here")
        sys.exit(int(os.environ["TOY_CODE"]))
    if os.environ.get("TOY_HANG") and name.startswith("train"):
        try:
            write("hang")
            time.sleep(600)
        except KeyboardInterrupt:
            checkpoint.write_text("2")
            write("save")
            sys.exit(130)
    advance(4)
out.mkdir(parents=True, exist_ok=True)
if name == "report":
    (out / "index.html").write_text("<html>")
    (out / "findings.json").write_text(json.dumps(["first finding", "second finding", "third finding"]))
else:
    (out / "result").write_text(name)
write("end")
"""


class Toy:
    """A small study in a repository of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            **{
                f"DVC_{kind}_DIR": str(folder.parent / kind)
                for kind in ("GLOBAL_CONFIG", "SYSTEM_CONFIG", "SITE_CACHE")
            },
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [BIN / "maquette", "repro", *options],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def repro(self, *options: str, **environment: str) -> tuple[int, str, str]:
        with self.start(*options, **environment) as run:
            out, err = run.communicate(timeout=PATIENCE)
            return run.returncode, out, err

    def shell(self, *command: str) -> str:
        run = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        )
        return run.stdout + run.stderr

    def journal(self) -> list[str]:
        path = self.folder / ".maquette" / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def forget(self) -> None:
        (self.folder / ".maquette" / "journal").write_text("")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    folder = tmp_path / "study"
    (folder / ".dvc").mkdir(parents=True)
    for name in (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "work.py").write_text(WORK)
    toy = Toy(folder)
    toy.shell("git", "init", "-q")
    toy.shell("git", "add", "-A")
    toy.shell("git", "-c", "user.name=x", "-c", "user.email=x@x.invalid", "commit", "-q", "-m", "toy")
    return toy


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.05)


def test_the_study_runs_in_order_side_by_side_and_then_has_nothing_to_do(toy: Toy) -> None:
    code, out, err = toy.repro(
        "--jobs", "2", TOY_MEET="1"
    )  # each training stage waits for the other to start
    assert code == 0, err
    journal = toy.journal()
    assert journal[:2] == ["start corpus", "end corpus"]
    assert sorted(journal[2:4]) == ["start train-large", "start train-small"]
    assert journal[-2:] == ["start report", "end report"]
    assert out.splitlines()[:3] == ["1. first finding", "2. second finding", "3. third finding"]
    assert str(toy.folder / "reports" / "index.html") in out
    assert toy.shell("git", "status", "--porcelain").split() == ["??", "dvc.lock"]

    code, out, err = toy.repro()
    assert code == 0
    assert "up to date" in err
    assert "3. third finding" in out
    assert toy.journal() == journal
    assert "up to date" in toy.shell("dvc", "repro")
    assert toy.journal() == journal


def test_a_changed_weight_reruns_what_depends_on_it_longest_first(toy: Toy) -> None:
    assert toy.repro("--jobs", "1")[0] == 0
    toy.forget()
    (toy.folder / "params.yaml").write_text(PARAMS.replace("0.2", "0.3"))
    code, _, err = toy.repro("--jobs", "1")
    assert code == 0
    assert toy.journal() == ["start train-large", "end train-large", "start train-small", "end train-small"]
    assert "report: unchanged" in err  # the trained files came out the same


def test_a_failing_stage_shows_its_output_and_lets_the_others_save(toy: Toy) -> None:
    code, out, err = toy.repro(
        "--jobs", "2", TOY_MEET="1", TOY_HANG="1", TOY_FAIL="train-large", TOY_CODE="7"
    )
    assert code == 1
    assert "the reason is written here" in err
    assert ".maquette/stage-logs/train@large.log" in err
    assert "save train-small" in toy.journal()
    assert "start report" not in toy.journal()
    assert out == ""


def test_a_stage_that_refuses_the_users_input_says_so_in_the_exit_code(toy: Toy) -> None:
    code, _, err = toy.repro(TOY_FAIL="corpus", TOY_CODE="2")
    assert code == 2
    assert "the reason is written here" in err


def test_ctrl_c_lets_the_stages_save_and_the_next_run_goes_on(toy: Toy) -> None:
    run = toy.start("--jobs", "2", TOY_HANG="1")
    until(lambda: {"hang train-large", "hang train-small"} <= set(toy.journal()))
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130, err
    assert {"save train-large", "save train-small"} <= set(toy.journal())
    assert "Traceback" not in err
    assert not (toy.folder / "runs" / "large").exists()

    toy.forget()
    assert toy.repro("--jobs", "2")[0] == 0
    assert {"resume train-large", "resume train-small", "end report"} <= set(toy.journal())
    assert "start corpus" not in toy.journal()


def test_no_training_outlives_a_killed_run(toy: Toy) -> None:
    run = toy.start("--jobs", "2", TOY_HANG="1")
    until(lambda: {"hang train-large", "hang train-small"} <= set(toy.journal()))
    below = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.communicate(timeout=PATIENCE)
    until(lambda: {"save train-large", "save train-small"} <= set(toy.journal()))
    psutil.wait_procs(below, timeout=PATIENCE)
    assert toy.repro()[0] == 0


def test_a_second_run_in_the_same_folder_is_refused(toy: Toy) -> None:
    (toy.folder / ".maquette").mkdir()
    with (toy.folder / ".maquette" / "repro.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = toy.repro()
    assert code == 2
    assert "another `maquette repro` is running" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dvc.yaml", "stages:\n  a: [1\n  b: 2\n", r"dvc\.yaml, line 3"),
        ("dvc.yaml", "stages:\n  a: {cmd: x, dependencies: [y]}\n", r"'dependencies'"),
        ("dvc.yaml", "stages:\n  a: {cmd: 'echo ${weigth}'}\n", r"Could not find 'weigth'"),
        ("dvc.yaml", "stages:\n  a: {cmd: x, outs: [y]}\n  b: {cmd: x, outs: [y]}\n", r"'y' is specified in"),
        ("params.yaml", "profile: laptop\nprofile: smoke\n", r"params\.yaml, line 2"),
        ("dvc.lock", "schema: '2.0'\nstages: [\n", r"dvc\.lock"),
    ],
)
def test_a_broken_pipeline_file_is_the_users_mistake(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, name: str, content: str, message: str
) -> None:
    (toy.folder / name).write_text(content)
    monkeypatch.chdir(toy.folder)
    for variable in ("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR", "DVC_SITE_CACHE_DIR"):
        monkeypatch.setenv(variable, toy.environment[variable])
    with pytest.raises(InputError, match=message):
        survey()


def test_a_folder_that_is_no_study_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no dvc\.yaml"):
        find_study(tmp_path)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    profiles = tmp_path / "experiments" / "profiles"
    profiles.mkdir(parents=True)
    for name in ("laptop", "smoke"):
        (profiles / f"{name}.yaml").touch()
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def test_a_study_is_found_from_below(study: Path) -> None:
    assert find_study(study / "experiments" / "profiles") == study


def test_setting_the_profile_changes_that_word_alone(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_profile(study, "smoke")
    assert (study / "params.yaml").read_text() == PARAMS.replace("laptop", "smoke")
    assert "smoke" in capsys.readouterr().err


def test_setting_the_profile_that_is_set_touches_nothing(study: Path) -> None:
    before = (study / "params.yaml").stat()
    set_profile(study, "laptop")
    assert (study / "params.yaml").stat().st_mtime_ns == before.st_mtime_ns
    assert (study / "params.yaml").stat().st_ino == before.st_ino


def test_an_unknown_profile_names_the_known_ones(study: Path) -> None:
    with pytest.raises(InputError, match="laptop, smoke"):
        set_profile(study, "lap")
    assert (study / "params.yaml").read_text() == PARAMS


def test_a_params_file_without_a_profile_line_says_what_to_add(study: Path) -> None:
    (study / "params.yaml").write_text("weight: 1\n")
    with pytest.raises(InputError, match="add `profile: smoke`"):
        set_profile(study, "smoke")
