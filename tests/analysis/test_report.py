"""The stage commands, their JSON, and the page as a file; `test_report_browser.py` opens it."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from analysis.ablation import ablate
from analysis.cli import app
from analysis.compare import compare
from analysis.report.documents import read_document
from analysis.report.findings import ablation_finding, findings
from analysis.report.overlay import MOST_POINTS, overlay_data
from analysis.report.page import write_page
from experiments.configuration import InputError
from logs.schema import RunFacts

LADDER = ["own/ladder/small", "own/ladder/medium", "own/ladder/large"]
PAIR_KEYS = {
    "own", "public", "shape_distance", "interval", "token_shift", "compute_ratio", "grad_norm_landmarks", "schedule",
    "ledger",
}  # fmt: skip
SPIKE = {
    "kind": "divergence", "title": "The run diverged", "onset_step": 100, "peak_step": 120, "end_step": 180,
    "severity": "severe", "evidence": {"says": "loss 3.1 -> <7.2>"}, "causes": ["learning rate too high"],
    "try_first": "halve the learning rate",
}  # fmt: skip
DIAGNOSIS = [
    {"run": "own/ladder/small", "verdict": "diverged", "findings": [SPIKE], "phases": []},
    {"run": "marin-535b", "verdict": "healthy", "findings": [],
     "phases": [{"name": "slow fall", "first_step": 10, "last_step": 99}]},
]  # fmt: skip
FORECAST = {
    "run": "marin-535b", "method": "floor", "warnings": ["one rung only"],
    "points": [
        {"fraction": 0.5, "step": 49, "predicted": 2.2, "interval": [2.1, 2.3], "landed": 2.15, "error": -0.05},
        {"fraction": 1.0, "step": 99, "predicted": 2.0, "interval": None, "landed": None, "error": None},
    ],
}  # fmt: skip
FIT_KEYS = {
    "law", "n_points", "n_used", "parameters", "objective", "status", "identified", "holdout", "warnings",
}  # fmt: skip


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def reports(store, tmp_path_factory):
    """A folder in which all stage commands have run."""
    out = tmp_path_factory.mktemp("reports")
    run("compare", *LADDER, "--public", "marin-535b", "--out", out / "compare.json", "--store", store)
    run("fit", "power-law", "--runs", "own/ladder", "--out", out / "fit.json", "--store", store)
    run("ablate", "own/ablation", "--baseline", "balanced", "--out", out / "ablation.json", "--store", store)
    run("report", "--out", out, "--store", store)
    return out


def test_json_has_the_agreed_keys(store):
    document = json.loads(run("compare", LADDER[0], "--json", "--store", store).stdout)
    assert {"pairs", "report"} <= document.keys()
    assert document["pairs"][0].keys() >= PAIR_KEYS
    assert {"aspect", "own", "public", "same", "consequence"} <= document["pairs"][0]["ledger"][0].keys()
    fit = json.loads(run("fit", "power-law", "--runs", "own/ladder", "--json", "--store", store).stdout)
    assert fit.keys() >= FIT_KEYS
    assert fit["parameters"]["alpha"].keys() >= {"value", "interval"}


def test_a_table_is_fitted_by_its_column_names(tmp_path):
    table = tmp_path / "points.csv"
    table.write_text("C,L\n1e12,4.0\n1e13,3.4\n1e14,3.0\n1e15,2.6\n")
    fit = json.loads(run("fit", "power-law", table, "--flops", "C", "--loss", "L", "--json").stdout)
    assert fit["n_used"] == 4
    with pytest.raises(InputError, match="--loss"):
        run("fit", "power-law", table, "--flops", "C")
    with pytest.raises(InputError, match="no such file"):
        run("fit", "power-law", tmp_path / "none.csv", "--flops", "C", "--loss", "L")
    with pytest.raises(InputError, match="give a CSV table"):
        run("fit", "power-law")


def test_reports_are_written_whole_and_the_same_each_time(reports, store, tmp_path):
    found = json.loads((reports / "findings.json").read_text())
    assert len(found) == 3
    for name in ("compare", "fit", "ablation"):
        (tmp_path / f"{name}.json").write_bytes((reports / f"{name}.json").read_bytes())
    run("report", "--out", tmp_path, "--store", store)
    for name in (
        "index.html",
        "findings.json",
        "figures/overlay.png",
        "figures/ladder.png",
        "figures/ablation.png",
    ):
        assert (tmp_path / name).read_bytes() == (reports / name).read_bytes(), name


def test_the_page_is_self_contained_and_small(reports):
    page = (reports / "index.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 8_000_000
    before_script = page.split('<script type="application/json"')[0]
    assert not re.search(r'(src|href)="(?!data:|#|https://)', before_script)
    assert not re.search(r"<(link|script|img|iframe)[^>]+(src|href)=\"https?:", page.split("* plotly.js")[0])


def test_the_page_is_well_formed(reports):
    """Every element that needs an end has one, in order."""
    stack, void = [], {"meta", "link", "br", "img", "input"}

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in void:
                stack.append(tag)

        def handle_endtag(self, tag):
            assert stack.pop() == tag, (tag, self.getpos())

    Balance().feed((reports / "index.html").read_text(encoding="utf-8"))
    assert stack == []


def test_findings_say_what_the_numbers_say(reports):
    comparison, fit, ablation = (
        json.loads((reports / f"{name}.json").read_text()) for name in ("compare", "fit", "ablation")
    )
    overlay, ladder, mixtures = (found.sentence for found in findings(comparison, fit, ablation))
    assert f"{100 * comparison['pairs'][0]['shape_distance']:.1f} % for small" in overlay
    assert f"C^-{fit['parameters']['alpha']['value']:.3f}" in ladder
    assert overlay.startswith("The own curves fall")
    assert ("do not pin" in ladder) == (fit["parameters"]["alpha"]["t_interval"][0] <= 0)
    for mixture in ablation["mixtures"]:
        assert f"{mixture['mixture']} {mixture['overall']['difference']:+.4f}" in mixtures
    fit["parameters"]["alpha"]["t_interval"] = [0.01, 0.1]
    assert findings(comparison, fit, ablation)[1].title.startswith("Ten times the compute lowers the loss by")
    mixtures = findings(comparison, ablation=ablation)[1]
    verdicts = {mixture["mixture"]: mixture["overall"]["verdict"] for mixture in ablation["mixtures"]}
    assert verdicts["books-heavy"] == "within noise"
    assert "books-heavy is within seed noise of balanced" in mixtures.title


def test_a_section_appears_when_its_document_is_there(reports, store, tmp_path):
    (tmp_path / "compare.json").write_bytes((reports / "compare.json").read_bytes())
    (tmp_path / "diagnosis.json").write_text(json.dumps({"runs": DIAGNOSIS}))
    (tmp_path / "forecast.json").write_text(json.dumps(FORECAST))
    run("report", "--out", tmp_path, "--store", store)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'<section id="(\w+)"', page)) == {
        "findings", "curves", "health", "ledger", "prediction", "words", "reproduce", "sources",
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["overlay.png"]
    _, health, landed = json.loads((tmp_path / "findings.json").read_text())
    assert health == "small diverged. small: the run diverged from step 100."
    assert landed.startswith("marin-535b lands 0.050 below its forecast.")
    assert "<li>learning rate too high</li>" in page
    (tmp_path / "diagnosis.json").write_text(json.dumps(DIAGNOSIS[1]))
    run("report", "--out", tmp_path, "--store", store)
    assert "The run is healthy" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_long_log_is_drawn_small_with_its_spike(make_run, marin):
    import numpy as np

    loss = 2 + 3 * (np.arange(300_000) + 1.0) ** -0.3
    loss[77_777] = 9.0
    facts = RunFacts(steps_planned=300_000, tokens_per_step=10)
    own = make_run("own/long", {"step": range(300_000), "train/loss": loss}, facts)
    drawn = overlay_data([own], marin, compare([own], marin))["runs"][1]["curves"]["loss"]
    assert len(drawn["value"]) <= MOST_POINTS
    assert drawn["logged"] == 300_000
    assert max(drawn["value"]) == 9.0
    assert drawn["done"][drawn["value"].index(9.0)] == 77_778


def test_a_run_without_facts_is_marked_and_not_drawn_wrongly(make_run, marin, tmp_path):
    bare = make_run("own/bare", {"step": range(50), "train/loss": [3.0 - 0.01 * i for i in range(50)]})
    comparison = compare([bare], marin)
    overlay = overlay_data([bare], marin, comparison)["runs"][1]
    assert overlay["factors"]["fraction"] is None
    assert "steps planned" in overlay["missing"]["fraction"]
    assert "relative" not in overlay["curves"]
    write_page(tmp_path / "page.html", [bare], marin, comparison, y="loss", x="step")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "steps planned, which one of the runs does not state" in page
    with pytest.raises(InputError, match="choices"):
        write_page(tmp_path / "page.html", [bare], marin, comparison, y="height")


def test_text_from_logs_cannot_break_out_of_the_page(ladder, marin, tmp_path):
    evil = "</script><script>alert(1)</script>"
    own = replace(ladder[0], facts=ladder[0].facts.model_copy(update={"title": evil, "data": evil}))
    write_page(tmp_path / "page.html", [own], marin, compare([own], marin))
    assert "<script>alert(1)" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_missing_result_names_the_command_that_makes_it(tmp_path, store):
    with pytest.raises(InputError, match="maquette compare"):
        run("report", "--out", tmp_path, "--store", store)
    with pytest.raises(InputError, match="no runs below"):
        run("ablate", "own/nothing", "--store", store)


def test_importing_the_command_line_loads_nothing_heavy():
    heavy = "{'torch', 'pandas', 'numpy', 'scipy', 'matplotlib'}"
    code = f"import sys, analysis.cli; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("name", ["compare", "fit", "ablation", "diagnosis", "forecast"])
@pytest.mark.parametrize("text", ["{}", "[]", "null", "3", '"text"', "9" * 5000, "{"])
def test_a_result_of_the_wrong_shape_names_the_command_that_remakes_it(reports, store, tmp_path, name, text):
    for other in ("compare", "fit", "ablation"):
        (tmp_path / f"{other}.json").write_bytes((reports / f"{other}.json").read_bytes())
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(
        InputError, match=rf"{name}\.json.*`maquette (compare|fit|ablate|diagnose|forecast).*--out"
    ):
        run("report", "--out", tmp_path, "--store", store)
    assert not (tmp_path / "index.html").exists()


@pytest.mark.parametrize(("name", "key"), [("compare", "pairs"), ("fit", "points"), ("ablation", "mixtures")])
def test_a_result_with_one_wrong_part_names_the_part(reports, tmp_path, name, key):
    document = json.loads((reports / f"{name}.json").read_text())
    assert read_document(reports, name) == document
    for wrong in ([], None, [{}], {}, [None]):
        (tmp_path / f"{name}.json").write_text(json.dumps(document | {key: wrong}))
        with pytest.raises(InputError, match=f"{name}\\.json: `{key}"):
            read_document(tmp_path, name)


def test_one_seed_judges_no_domain(ablation):
    by_variant = {}
    for one in ablation:
        if one.name.endswith("seed-0"):
            by_variant[one.name.split("/")[-2]] = {0: one}
    sentence = ablation_finding(ablate(by_variant, "balanced")).sentence
    assert "1 seed each" in sentence
    assert "noise between seeds is unknown: no domain can be judged" in sentence
    assert "beyond seed noise" not in sentence
