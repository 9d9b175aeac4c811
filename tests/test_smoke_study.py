"""The whole study in the smoke profile, from a copy of the checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.configuration import read_yaml
from experiments.doctor import find_browser
from experiments.study import load_study

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def run(study: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of the environment, in the study's folder."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [BIN / command[0], *command[1:]],
        cwd=study,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A checkout of its own with the study done; only the packages it downloads are shared with this one."""
    folder = tmp_path_factory.mktemp("study")
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "dvc.lock").unlink(missing_ok=True)
    downloads = ROOT / ".maquette" / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    (folder / ".maquette").mkdir()
    (folder / ".maquette" / "downloads").symlink_to(downloads)
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    done = run(folder, "maquette", "repro", "--profile", "smoke")
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "said.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def test_it_ends_by_naming_the_report_and_its_three_findings(study):
    lines = (study / "said.txt").read_text(encoding="utf-8").splitlines()
    findings = json.loads((study / "reports/findings.json").read_text(encoding="utf-8"))
    assert len(findings) == 6
    assert lines[-4:-1] == [f"{i}. {finding}" for i, finding in enumerate(findings[:3], 1)]
    assert lines[-1] == f"report: {study / 'reports/index.html'}"
    for picture in ("overlay", "ladder", "ablation"):
        assert (study / f"reports/figures/{picture}.png").stat().st_size > 10_000


def test_every_run_learned_and_says_what_it_was(study):
    names = load_study(study).names()
    assert len(names) == 9
    for name in names:
        folder = study / "runs" / name
        summary, facts = (json.loads((folder / f"{file}.json").read_text()) for file in ("summary", "facts"))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        trained = [row for row in rows if "train/loss" in row]
        assert [row["step"] for row in trained] == list(range(facts["steps_planned"]))
        assert trained[-1]["tokens"] == facts["tokens_planned"] == summary["tokens"]
        assert summary["final_train_loss"] < trained[0]["train/loss"] - 0.3
        assert facts["seed"] == json.loads((folder / "data.json").read_text())["seed"]
        assert read_yaml(folder / "config.yaml")["name"] == name
        assert json.loads((folder / "environment.json").read_text())["packages"]["torch"].startswith("2.13")


def test_a_second_run_has_nothing_to_do(study):
    again = run(study, "maquette", "repro")
    assert again.returncode == 0
    assert "everything is up to date" in again.stderr
    assert "up to date" in run(study, "dvc", "repro").stdout


def test_only_dvc_lock_is_new_to_git(study):
    status = subprocess.run(
        ["git", "status", "--short"], cwd=study, capture_output=True, text=True, check=True
    )
    changed = {line[3:] for line in status.stdout.splitlines() if not line.startswith("A  ")}
    assert changed == {"dvc.lock", "params.yaml", "said.txt"}


def test_a_changed_weight_touches_only_what_depends_on_it(study):
    params = study / "params.yaml"
    before = params.read_text(encoding="utf-8")
    try:
        params.write_text(before.replace("code: 0.6, docs: 0.1", "code: 0.5, docs: 0.2"), encoding="utf-8")
        status = json.loads(run(study, "dvc", "status", "--json").stdout)
    finally:
        params.write_text(before, encoding="utf-8")
    assert set(status) == {"train-ablation@code-heavy-0", "train-ablation@code-heavy-1"}


def test_the_report_shows_three_figures_with_data_in_a_browser(study):
    browser = find_browser()
    if browser is None and not os.environ.get("CI"):
        pytest.skip("no Chromium found; install one to see the report in a browser")
    assert browser is not None, "CI needs a Chromium"
    playwright = pytest.importorskip("playwright.sync_api")
    complaints: list[str] = []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=str(browser),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = chromium.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((study / "reports/index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 3")
        points = {
            figure: page.evaluate(
                "id => document.getElementById(id).data.reduce((n, t) => n + Array.from(t.y || []).length, 0)",
                figure,
            )
            for figure in ("overlay", "ladder", "ablation")
        }
        chromium.close()
    assert complaints == []
    assert points["overlay"] > 500
    assert points["ladder"] >= 3
    assert points["ablation"] >= 12
