"""The diagnosis of made-up runs: planted events, runs with nothing wrong, and logs that say too little."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analysis.diagnosis.advice import advice_by_kind, advised
from analysis.diagnosis.diagnose import diagnose, diagnose_all, diagnose_cells
from analysis.diagnosis.finding import SEVERITIES, Finding
from analysis.diagnosis.spikes import six_sigma_score
from analysis.diagnosis.trend import Curve, running_median
from experiments.configuration import InputError
from logs.schema import Run, RunFacts, Segment, make_table, metric_column
from maquette import command_line
from tests.analysis.conftest import build_run, build_training_run

STEPS = 4000
STEP = np.arange(STEPS)


def loss_curve(seed=0, noise=0.02, steps=STEPS):
    return (
        2.0 + 8.0 * (1 + np.arange(steps) / 40) ** -0.5 + np.random.default_rng(seed).normal(0, noise, steps)
    )


def run_of(loss=None, facts=None, name="own", **columns):
    loss = loss_curve() if loss is None else loss
    return build_run(name, {"step": np.arange(len(loss)), "train/loss": loss, **columns}, facts)


def found(document, kind):
    return [f for f in document["findings"] if f["kind"] == kind]


def alarms(document):
    return [f["kind"] for f in document["findings"] if f["severity"] != "info"]


@settings(max_examples=15)
@given(st.integers(0, 400))
def test_a_run_with_nothing_wrong_is_healthy(seed):
    document = diagnose(run_of(loss_curve(seed), grad_norm=np.full(STEPS, 0.3)))
    assert (document["verdict"], document["findings"]) == ("healthy", [])
    assert document["phases"][0]["name"] == "fast fall"


@settings(max_examples=15)
@given(st.integers(1000, STEPS - 200), st.integers(2, 20), st.floats(0.3, 4), st.integers(0, 100))
def test_a_planted_spike_is_found_where_it_is(at, length, height, seed):
    loss = loss_curve(seed)
    loss[at : at + length] += height
    (spike,) = found(diagnose(run_of(loss)), "spike")
    assert spike["onset_step"] == at
    assert at <= spike["peak_step"] < at + length
    assert at + length <= spike["end_step"] <= at + length + 20  # noise may hold it up
    share = spike["evidence"]["share_undone"]
    assert spike["severity"] == ("severe" if share >= 0.1 else "warning" if share >= 0.05 else "info")


@settings(max_examples=15)
@given(st.integers(300, STEPS - 200), st.integers(0, 100))
def test_a_single_odd_step_of_a_full_log_is_the_batchs(at, seed):
    loss = loss_curve(seed)
    loss[at - 3 : at + 4] = loss_curve(noise=0)[
        at - 3 : at + 4
    ]  # a high neighbour would make it a spike of two
    loss[at] += 3
    document = diagnose(run_of(loss))
    assert [(f["kind"], f["onset_step"]) for f in document["findings"]] == [("odd_batch", at)]
    assert document["verdict"] == "healthy"
    thinned = build_run("thinned", {"step": STEP[at % 5 :: 5], "train/loss": loss[at % 5 :: 5]})
    assert found(diagnose(thinned), "spike"), "between two logged points more may have happened"


@settings(max_examples=15)
@given(st.integers(STEPS // 2, STEPS - 500), st.sampled_from([-1, 1]), st.integers(0, 50))
def test_a_level_step_is_found_and_is_no_spike(at, sign, seed):
    loss = loss_curve(seed)
    loss[at:] += sign * 0.15
    document = diagnose(run_of(loss))
    (step,) = found(document, "level_step")
    assert abs(step["onset_step"] - at) <= 3
    assert step["evidence"]["change"] == pytest.approx(sign * 0.15, abs=0.03)
    assert not found(document, "spike")
    assert step["severity"] == ("warning" if sign > 0 else "info")


@settings(max_examples=15)
@given(st.integers(500, STEPS - 600), st.floats(0.4, 3), st.integers(0, 50))
def test_a_lasting_rise_is_a_divergence(at, lost, seed):
    loss = loss_curve(seed)
    loss[at:] += lost * (loss[0] - loss[at]) * np.clip((STEP[at:] - at) / 100, 0, 1)
    document = diagnose(run_of(loss))
    assert document["verdict"] == "diverged"
    assert document["findings"][0]["kind"] == "divergence"
    assert at - 20 <= document["findings"][0]["onset_step"] <= at + 60


def test_a_recovered_spike_is_no_divergence():
    loss = loss_curve()
    loss[2000:2300] += 4 * np.exp(-np.arange(300) / 60)
    assert not found(diagnose(run_of(loss)), "divergence")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logged_nan_loss_is_severe_at_the_end_and_a_warning_between(bad):
    loss = loss_curve()
    loss[3900:] = bad
    at_the_end = run_of(metric_column(loss.tolist()))
    (finding,) = found(diagnose(at_the_end), "non_finite")
    assert (finding["severity"], finding["onset_step"], finding["end_step"]) == ("severe", 3900, None)
    loss = loss_curve()
    loss[1000] = bad
    (finding,) = found(diagnose(run_of(metric_column(loss.tolist()))), "non_finite")
    assert (finding["severity"], finding["onset_step"], finding["end_step"]) == ("warning", 1000, 1001)


def test_a_null_is_a_missing_value_and_no_nan():
    loss = loss_curve().tolist()
    loss[1000:2000] = [None] * 1000
    document = diagnose(run_of(metric_column(loss)))
    (hole,) = found(document, "missing_stretch")
    assert (hole["onset_step"], hole["end_step"], hole["severity"]) == (1000, 2000, "warning")
    assert not found(document, "non_finite")


def test_a_loss_that_rests_at_a_high_learning_rate_is_a_plateau():
    loss = np.maximum(loss_curve(noise=0), 3.5) + np.random.default_rng(0).normal(0, 0.02, STEPS)
    assert alarms(diagnose(run_of(loss, lr=np.full(STEPS, 0.01)))) == ["plateau"]
    spent = run_of(loss, lr=np.linspace(0.01, 0.0, STEPS))
    assert not found(diagnose(spent), "plateau")


@pytest.mark.parametrize("period", [20, 50])
def test_a_swinging_loss_is_told_with_its_period(period):
    loss = loss_curve() + 0.25 * np.sin(2 * np.pi * STEP / period)
    (swing,) = found(diagnose(run_of(loss)), "oscillation")
    assert swing["evidence"]["period_steps"] == pytest.approx(period, abs=1)
    assert swing["severity"] == "warning"


def test_a_scatter_that_grows_is_told():
    loss = loss_curve()
    loss[2400:] += np.random.default_rng(1).normal(0, 0.2, STEPS - 2400)
    (swing,) = found(diagnose(run_of(loss)), "oscillation")
    assert 2400 <= swing["onset_step"] <= 3600


def test_batches_of_several_domains_that_come_apart_are_no_swing():
    """Small batches of five domains whose losses are alike at the start and .8 nats apart in the end."""
    rng = np.random.default_rng(0)
    trend = np.interp(np.arange(STEPS), [0, 60, 1500, STEPS], [6.9, 6.9, 3.6, 3.0])
    learned = (trend[0] - trend) / (trend[0] - trend[-1])
    apart = np.array([-0.8, -0.4, 0.0, 0.4, 0.8])
    batch = apart[rng.integers(0, 5, (STEPS, 16))].mean(axis=1)
    loss = trend + learned * batch + rng.normal(0, 0.03, STEPS)
    assert found(diagnose(run_of(loss)), "oscillation") == []


def test_a_run_that_never_learns_is_told():
    vocabulary = 50_257
    loss = 7.6 + 3.2 * np.exp(-STEP / 100) + np.random.default_rng(0).normal(0, 0.02, STEPS)
    document = diagnose(run_of(loss, RunFacts(vocab_size=vocabulary)))
    assert [f["kind"] for f in document["findings"] if f["severity"] == "severe"] == ["not_learning"]
    fine_tuned = 2.0 + 0.1 * np.exp(-STEP / 100) + np.random.default_rng(0).normal(0, 0.02, STEPS)
    assert not found(diagnose(run_of(fine_tuned, RunFacts(vocab_size=vocabulary))), "not_learning")


def test_the_gradient_norm_that_grows_and_the_one_that_dies():
    steady = 0.3 * np.exp(np.random.default_rng(0).normal(0, 0.1, STEPS))
    assert diagnose(run_of(grad_norm=steady))["findings"] == []
    grown = steady * np.where(STEP > 3000, np.exp((STEP - 3000) / 250), 1)
    (finding,) = found(diagnose(run_of(grad_norm=grown)), "grad_norm_growth")
    assert finding["severity"] == "warning"
    assert 3000 <= finding["onset_step"] <= 3500
    died = np.where(STEP >= 2500, 0.0, steady)
    (finding,) = found(diagnose(run_of(grad_norm=died)), "grad_norm_collapse")
    assert (finding["onset_step"], finding["end_step"]) == (2500, None)


def test_only_a_jump_of_the_learning_rate_is_one():
    warm = np.minimum(STEP / 200, 1)
    schedules = {
        "linear": warm * (1 - 0.95 * STEP / STEPS),
        "cosine": warm * (0.5 + 0.5 * np.cos(np.pi * STEP / STEPS)),
        "wsd": np.minimum(warm, (STEPS - STEP) / 400),
    }
    for schedule in schedules.values():
        assert not found(diagnose(run_of(lr=0.01 * schedule)), "lr_step")
    lr = 0.01 * schedules["linear"]
    lr[3000:] *= 2
    (jump,) = found(diagnose(run_of(lr=lr)), "lr_step")
    assert (jump["onset_step"], jump["severity"]) == (3000, "warning")


def test_slow_steps_a_slow_down_and_a_loader_that_is_waited_for():
    speed = 1e6 * (1 + np.random.default_rng(0).normal(0, 0.005, STEPS))
    every = speed.copy()
    every[::250] /= 20
    (slow,) = found(diagnose(run_of(tokens_per_second=every)), "throughput_drop")
    assert (slow["evidence"]["every"], slow["severity"]) == (250, "info")
    lame = np.where(STEP >= 2800, 0.6, 1) * speed
    (slower,) = found(diagnose(run_of(tokens_per_second=lame)), "slow_down")
    assert slower["onset_step"] == pytest.approx(2800, abs=200)
    waits = run_of(step_time=np.full(STEPS, 1.0), data_wait=np.full(STEPS, 0.4))
    assert found(diagnose(waits), "loader_bound")[0]["evidence"]["share"] == pytest.approx(0.4)


def test_hours_without_a_row_are_a_stall():
    wall_time = 1.7e9 + 2.0 * STEP
    wall_time[1500:] += 5 * 3600
    (stall,) = found(diagnose(run_of(wall_time=wall_time)), "stall")
    assert (stall["onset_step"], stall["end_step"]) == (1499, 1500)
    assert stall["evidence"]["idle_seconds"] == pytest.approx(5 * 3600, rel=1e-3)


@pytest.mark.parametrize(("name", "leaks"), [("gpu_memory_bytes", True), ("gpu_memory_max_bytes", False)])
def test_memory_that_grows_is_a_leak_unless_it_is_a_maximum(name, leaks):
    rows = pd.DataFrame({"step": STEP, "train/loss": loss_curve(), name: 1e10 * (1 + STEP / STEPS)})
    run = Run("leak", make_table(rows, "leak"), {"train/loss": "nats/token", name: "bytes"})
    assert bool(found(diagnose(run), "memory_growth")) is leaks


def test_routing_collapse_and_drops_that_surge():
    entropy = np.where(STEP < 2000, 5.9, np.maximum(5.9 - (STEP - 2000) / 300, 1.0))
    (collapse,) = found(diagnose(run_of(**{"router/entropy": entropy})), "routing_collapse")
    assert collapse["severity"] == "severe"
    assert 2000 < collapse["onset_step"] < 2500
    drops = 0.02 * (1 + 0.1 * np.random.default_rng(0).normal(size=STEPS))
    assert not found(diagnose(run_of(**{"router/drop_fraction": drops})), "drop_surge")
    drops[2200:] *= 5
    (surge,) = found(diagnose(run_of(**{"router/drop_fraction": drops})), "drop_surge")
    assert (surge["onset_step"], surge["severity"]) == (2200, "warning")


def test_an_evaluation_that_rises_while_training_falls():
    at = np.arange(99, STEPS, 100)
    evaluation = np.full(STEPS, np.nan)
    evaluation[at] = loss_curve(noise=0)[at] + np.maximum(0, (at - 2000) / 2000)
    (risen,) = found(diagnose(run_of(**{"eval/validation/loss": evaluation})), "overfitting")
    assert 1999 <= risen["onset_step"] <= 2600
    evaluation[at] = loss_curve(noise=0)[at] + 0.1
    assert not found(diagnose(run_of(**{"eval/validation/loss": evaluation})), "overfitting")


def test_steps_gone_over_again_are_told():
    loss = loss_curve()
    rows = pd.DataFrame({"step": STEP, "train/loss": loss, "segment": np.where(STEP < 2000, "a", "b")})
    again = pd.concat([rows[:2050].assign(segment="a"), rows[2000:]], ignore_index=True)
    segments = (
        Segment(id="a", first_step=0, last_step=2049),
        Segment(id="b", first_step=2000, last_step=3999, parent="a"),
    )
    run = Run("again", make_table(again, "again"), {"train/loss": "nats/token"}, segments=segments)
    (double,) = found(diagnose(run), "duplicated_steps")
    assert double["evidence"]["gone_over"] == [[2000, 2049]]


def test_a_batch_that_two_runs_read_is_told_from_a_fault_of_one():
    batches = np.random.default_rng(0).normal(0, 0.05, STEPS)
    batches[1234] += 1
    one, two = (loss_curve(seed, noise=0.005) + batches for seed in (1, 2))
    two[2000] += 1.2
    result = diagnose_all([run_of(one, name="one"), run_of(two + 0.5, name="two")])
    assert [batch["step"] for batch in result["shared_batches"]] == [1234]
    assert [f["kind"] for f in result["runs"][1]["findings"]] == ["odd_batch", "shared_batch"]
    other = loss_curve(3) + np.random.default_rng(9).normal(0, 0.05, STEPS)
    other[1234] += 1
    assert diagnose_all([run_of(one, name="one"), run_of(other, name="other")])["shared_batches"] == []


def test_phases_follow_the_schedule():
    lr = np.where(STEP < 3000, 1.0, np.linspace(4, 0, STEPS)) * 0.01
    loss = loss_curve() - np.maximum(0, STEP - 3000) / 4000
    phases = diagnose(run_of(loss, lr=lr))["phases"]
    assert [p["name"] for p in phases] == ["fast fall", "slow fall", "decay"]
    assert phases[0]["first_step"] == 0
    assert phases[-1]["first_step"] == pytest.approx(3000, abs=110)
    for before, after in pairwise(phases):
        assert after["first_step"] == before["last_step"] + 1


def test_windows_are_in_tokens_where_they_are_known():
    assert diagnose(run_of())["loss"]["window"]["of"] == "steps"
    known = diagnose(run_of(facts=RunFacts(tokens_per_step=1000)))["loss"]["window"]
    assert known["of"] == "tokens"
    assert known["width"] == pytest.approx(128_000)


def test_the_score_that_others_report_is_theirs():
    value = loss_curve()
    value[[700, 2500]] += 1
    curve = Curve("train/loss", STEP, STEP + 1.0, "steps", value)
    above = [
        i for i in range(128, STEPS)
        if value[i] > value[i - 128 : i].mean() + 6 * value[i - 128 : i].std()
    ]  # fmt: skip
    assert six_sigma_score(curve)["steps"] == above
    assert six_sigma_score(curve)["share"] == len(above) / (STEPS - 128)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.integers(0, 9), st.integers(0, 9))
def test_running_medians_are_those_of_the_windows(values, before, after):
    value, at = np.array(values), np.arange(len(values))
    start, end = np.maximum(at - before, 0), np.minimum(at + after + 1, len(values))
    expected = [np.median(value[lo:hi]) for lo, hi in zip(start, end, strict=True)]
    assert running_median(value, start, end) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("points", [1, 2, 4])
def test_a_few_points_are_too_little(points):
    document = diagnose(run_of(loss_curve()[:points]))
    assert [f["kind"] for f in document["findings"]] == ["too_little"]
    assert document["verdict"] == "warning"
    assert document["phases"] == []


@settings(max_examples=15)
@given(st.integers(5, 200), st.sampled_from([0.0, 2.5, 1e300, -3.0]))
def test_a_constant_loss_is_said_to_be_one(points, value):
    document = diagnose(run_of(np.full(points, value)))
    assert [f["kind"] for f in document["findings"]] == ["constant"]
    json.dumps(document, allow_nan=False)


@settings(max_examples=30)
@given(st.lists(st.floats(), min_size=1, max_size=150))
def test_whatever_was_logged_there_is_a_document_without_nan(values):
    columns = {
        "grad_norm": metric_column(values),
        "lr": metric_column(values),
        "router/entropy": metric_column(values),
    }
    document = diagnose(run_of(metric_column(values), **columns, tokens_per_second=metric_column(values)))
    json.dumps(document, allow_nan=False)
    assert document["verdict"] in ("healthy", "warning", "diverged")


def test_a_run_without_a_loss_is_not_called_healthy():
    document = diagnose(build_run("speed", {"step": STEP, "tokens_per_second": np.full(STEPS, 1e6)}))
    assert document["verdict"] == "warning"
    assert "no loss" in document["findings"][0]["evidence"]["says"]


def test_a_run_without_rows_is_an_input_error():
    with pytest.raises(InputError, match="no rows"):
        diagnose(run_of(np.array([])))


def test_every_kind_of_finding_has_advice():
    sources = "".join(p.read_text() for p in Path("analysis/diagnosis").glob("*.py"))
    named = set(re.findall(r'kind="(\w+)"', sources))
    told = advice_by_kind()
    assert named <= told.keys()
    for kind, advice in told.items():
        assert advice.causes, kind
        document = advised(Finding(kind=kind, severity=SEVERITIES[0], says="."))
        assert document["try_first"]


def test_the_study_s_own_runs_are_healthy():
    assert alarms(diagnose(build_training_run("own/ladder/large", steps=2000))) == []


def invoke(*arguments):
    return CliRunner().invoke(command_line(), ["diagnose", *map(str, arguments)])


def test_the_command_takes_a_path_a_stored_name_and_a_table(tmp_path, store):
    csv = tmp_path / "log.csv"
    loss = loss_curve()
    loss[2000:2010] += 3
    csv.write_text("step,loss\n" + "".join(f"{i},{v:.6f}\n" for i, v in enumerate(loss)))
    document = json.loads(invoke(csv, "--json").stdout)
    assert {"run", "verdict", "findings", "phases"} <= document.keys()
    assert document["findings"][0].keys() >= {
        "kind", "onset_step", "peak_step", "end_step", "severity", "evidence", "causes", "try_first",
    }  # fmt: skip
    stored = json.loads(invoke("marin-535b", "--store", store, "--json").stdout)
    assert stored["run"] == "marin-535b"
    cells = json.loads(invoke("logs/published/marin/marin_isoflop_aug_8003.csv", "--json").stdout)
    assert cells["verdict"] == "diverged"
    several = json.loads(invoke(csv, "marin-535b", "--store", store, "--json").stdout)
    assert [run["run"] for run in several["runs"]] == ["log", "marin-535b"]


def test_the_table_begins_with_the_verdict(tmp_path):
    csv = tmp_path / "log.csv"
    loss = loss_curve()
    loss[2000:2010] += 3
    csv.write_text("step,loss\n" + "".join(f"{i},{v:.6f}\n" for i, v in enumerate(loss)))
    out = invoke(csv).stdout
    assert out.startswith("log: warning. Loss spike")
    assert out.index("Steps 2,000 to 2,01") < out.index("1. learning rate") < out.index("Try first")
    assert out.index("Try first") < out.index("Phases: fast fall 0-")


def test_the_command_names_what_it_cannot_find(tmp_path):
    result = invoke("no-such-run", "--store", tmp_path)
    assert isinstance(result.exception, InputError)
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    assert isinstance(invoke(table).exception, InputError)
    broken = tmp_path / "broken.csv"
    broken.write_text("step,loss,lr\n0,3.1,1\n1,3.0\n2,much,1\n")
    findings = json.loads(invoke(broken, "--json").stdout)["findings"]
    assert [f["kind"] for f in findings] == ["too_little"], "a broken log is no table of cells"


def test_losses_whose_distance_overflows_have_no_level_to_diverge_from():
    document = diagnose(run_of(np.where(np.arange(300) % 2, 1e308, -1e308)))
    json.dumps(document, allow_nan=False)


def test_a_table_of_too_few_losses_is_not_called_healthy():
    table = pd.DataFrame({"width": [64, 128, 256], "loss": [3.0, np.nan, np.inf]})
    document = diagnose_cells(table, "sweep")
    assert document["verdict"] == "warning"
    assert [f["kind"] for f in document["findings"]] == ["too_little"]
    assert "1 of 3 cells have a loss" in document["says"]
    assert "no column counts steps" in document["says"]


def test_a_column_of_losses_alone_is_a_log_without_steps(tmp_path):
    path = tmp_path / "losses.csv"
    path.write_text("loss\n" + "".join(f"{3 - i / 100}\n" for i in range(100)))
    done = CliRunner().invoke(command_line(), ["diagnose", str(path)])
    assert isinstance(done.exception, InputError)
    assert "no column counts its steps" in str(done.exception)
