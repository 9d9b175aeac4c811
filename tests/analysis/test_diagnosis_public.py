"""The diagnosis of public logs whose story is known from their authors, or was read off them by hand."""

from functools import lru_cache
from pathlib import Path

import pandas as pd
import pytest

from analysis.diagnosis.diagnose import diagnose, diagnose_all, diagnose_cells
from analysis.diagnosis.levels import level_steps
from analysis.diagnosis.trend import curve_of, flattened
from logs.ingest import read_logs
from logs.schema import Run

PUBLIC = Path(__file__).parents[3] / "shared" / "public"
needs_public = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"the public logs ({PUBLIC}) are not here")


@lru_cache(maxsize=16)
def runs_at(place):
    return {run.name: run for run in read_logs(PUBLIC / place).runs}


@lru_cache(maxsize=64)
def diagnosed(place, name=None):
    runs = runs_at(place)
    return diagnose(runs[name] if name else next(iter(runs.values())))


def kinds(document):
    return {finding["kind"] for finding in document["findings"]}


def of_kind(document, kind):
    return [finding for finding in document["findings"] if finding["kind"] == kind]


def alarms(document):
    return [f["kind"] for f in document["findings"] if f["severity"] != "info"]


@needs_public
def test_mixtral_has_one_severe_spike():
    document = diagnosed("megatron-golden/mixtral_8x7b_a100.json")
    severe = [f for f in document["findings"] if f["severity"] == "severe"]
    assert [(f["kind"], f["onset_step"], f["peak_step"]) for f in severe] == [("spike", 4050, 4055)]
    assert severe[0]["end_step"] == pytest.approx(4085, abs=10)
    assert document["findings"][0] is severe[0]
    assert document["verdict"] == "warning"


@needs_public
@pytest.mark.parametrize("step", [2425, 3735, 4575, 5300, 5875])
def test_the_small_spikes_of_mixtral_rank_far_below(step):
    document = diagnosed("megatron-golden/mixtral_8x7b_a100.json")
    (spike,) = [f for f in of_kind(document, "spike") if f["onset_step"] == step]
    assert spike["evidence"]["share_undone"] < of_kind(document, "spike")[0]["evidence"]["share_undone"] / 4
    assert spike["severity"] != "severe"


@needs_public
def test_the_nan_of_mixtral_are_missing_values():
    document = diagnosed("megatron-golden/mixtral_8x7b_a100.json")
    assert "non_finite" not in kinds(document)
    (missing,) = of_kind(document, "missing_values")
    assert missing["onset_step"] == 13_555
    assert missing["severity"] == "info"
    assert document["six_sigma"]["every_kth_step"] == 5
    assert not document["six_sigma"]["comparable"]


@needs_public
@pytest.mark.parametrize(
    ("name", "best_step", "last"),
    [
        ("blowup-4-alibi-bf16-1796229", 2400, 6.67),
        ("blowup-4-alibi-nods-1814186", 1000, 15.68),
        ("blowup-4-alibi-fp32-1796300", 2400, 5.64),
    ],
)
def test_the_alibi_runs_diverged(name, best_step, last):
    document = diagnosed("megatron-text", name)
    assert document["verdict"] == "diverged"
    (broken,) = of_kind(document, "divergence")
    assert best_step < broken["onset_step"] <= best_step + 600
    assert broken["evidence"]["last"] == pytest.approx(last, abs=0.01)


@needs_public
@pytest.mark.parametrize("name", ["blowup-3-adam-1793490", "blowup-4-adam-alibi-1794235"])
def test_the_adam_runs_never_learn(name):
    document = diagnosed("megatron-text", name)
    (stuck,) = of_kind(document, "not_learning")
    assert stuck["severity"] == "severe"
    assert stuck["evidence"]["lowest"] > 7
    assert document["verdict"] != "healthy"


@needs_public
def test_a_norm_of_zero_and_counted_nan_steps_are_told():
    document = diagnosed("megatron-text", "blowup-4-alibi-nods-1814186")
    assert of_kind(document, "non_finite")[0]["evidence"]["nan"] == 81
    assert of_kind(document, "grad_norm_collapse")[0]["onset_step"] == 1600


@needs_public
def test_batches_that_stand_out_in_every_run_of_one_data_order_are_no_fault_of_a_run():
    runs = runs_at("build-nanogpt")
    names = ["log_1_epoch/nanogpt-train-1806877", "log_linear_lr/log", "log_no_warmup/log"]
    result = diagnose_all(list(runs.values()))
    assert all(document["verdict"] == "healthy" for document in result["runs"])
    shared = {batch["step"]: batch["runs"] for batch in result["shared_batches"]}
    assert {11_352, 14_859} <= shared.keys()
    for step in (11_352, 14_859):
        assert set(names) <= set(shared[step])
        for document in result["runs"]:
            if document["run"] in names:
                (found,) = [f for f in document["findings"] if f["peak_step"] == step]
                assert found["kind"] == "shared_batch"
                assert "this batch, not this run" in found["evidence"]["says"]


@needs_public
def test_the_same_run_logged_twice_is_no_evidence_of_a_batch():
    runs = runs_at("build-nanogpt")
    twice = [runs["log_no_warmup/log"], runs["log_no_warmup/nanogpt-nowarmup-1816358"]]
    assert diagnose_all(twice)["shared_batches"] == []


@needs_public
@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("modded-nanogpt/2024-10-13_llmc", None),
        ("wandb-export/smollm3_part1.csv", None),
        ("nemotron", "super_release_nvfp4_100B"),
        ("modded-nanogpt/2024-06-06_AdamW", None),
        ("torchtitan/losses/llama3_cuda.txt", None),
    ],
)
def test_healthy_logs_are_called_so_and_shown_beside_public_runs(place, name):
    document = diagnosed(place, name)
    assert document["verdict"] == "healthy"
    assert alarms(document) == []
    measures = document["reference"]["measures"]
    assert {m["name"] for m in measures} >= {"scatter", "loss_at_half"}
    for m in measures:
        assert m["inside"] == (m["low"] <= m["value"] <= m["high"])
        assert {m["lowest_run"], m["highest_run"]} <= document["reference"]["runs"].keys()


@needs_public
def test_no_false_alarm_in_curves_under_many_schedules():
    for name, run in runs_at("multi-power-law").items():
        document = diagnose(run)
        assert (document["verdict"], alarms(document)) == ("healthy", []), name
        stepped = [f["onset_step"] for f in of_kind(document, "lr_step")]
        assert stepped == ([8000] if "wsdcon" in name else []), name


@needs_public
def test_an_overfitted_run_is_told():
    document = diagnosed("nanogpt-text/gpt2_output.log")
    (risen,) = of_kind(document, "overfitting")
    assert risen["evidence"]["last"] > 2 * risen["evidence"]["best"]


@pytest.fixture(scope="module")
def hero(marin: Run):
    return diagnose(marin)


def test_marins_run_has_no_loss_spike_and_is_healthy(hero):
    assert not kinds(hero) & {"spike", "odd_batch", "divergence", "plateau", "oscillation"}
    assert hero["verdict"] == "healthy"


def test_marins_mixture_change_is_a_level_step(hero, marin):
    """Published: +.022 to +.028 on the same step numbers."""
    (step,) = [f for f in of_kind(hero, "level_step") if f["onset_step"] == 108_000]
    assert step["evidence"]["lowest"] == pytest.approx(0.022, abs=0.001)
    assert step["evidence"]["highest"] == pytest.approx(0.028, abs=0.001)
    assert any(event["kind"] == "data" for event in step["evidence"]["published"])


def test_marins_mixture_change_shows_in_the_lineage_alone(marin):
    loss = curve_of(flattened(marin), "train/loss")
    handovers = [segment.first_step for segment in marin.segments[1:]]
    (step,) = level_steps(loss, [], None, handovers)
    assert step.onset_step == 108_000
    assert 0.01 < step.numbers["change"] < 0.03


def test_marins_transport_change_lowered_the_loss_on_the_same_batches(hero):
    """Published: -.006498 nats over 200 batches."""
    (step,) = [f for f in of_kind(hero, "level_step") if f["onset_step"] == 81_716]
    assert step["evidence"]["change"] == pytest.approx(-0.0065, abs=0.0005)


def test_marins_handovers_are_slow_at_first(hero):
    drops = {f["onset_step"] for f in of_kind(hero, "handover_drop")}
    assert drops == {58_015, 81_717, 108_000, 108_779, 146_139}


def test_marins_drop_fraction_falls_450_times(hero):
    falls = [f for f in of_kind(hero, "drop_fall") if f["onset_step"] == 81_716]
    assert falls[0]["evidence"]["factor"] == pytest.approx(450, rel=0.1)


def test_two_cells_of_marins_sweep_diverged():
    table = pd.read_csv("logs/published/marin/marin_isoflop_aug_8003.csv")
    document = diagnose_cells(table, "marin_isoflop_aug_8003")
    found = [f["evidence"]["row"] - 1 for f in document["findings"]]
    assert found == table.index[table["status"] == "diverged"].tolist()
    assert document["verdict"] == "diverged"
