"""Text and JSON logs of public runs: what is read equals what `INDEX.md` of the public data states."""

from pathlib import Path

import numpy as np
import pytest

from logs.ingest import read_logs
from logs.readers import NotALog
from logs.schema import Run, is_logged

PUBLIC = Path(__file__).parents[3] / "shared" / "public"
pytestmark = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"the public logs ({PUBLIC}) are not here")


def read(place: str) -> Run:
    (run,) = read_logs(PUBLIC / place).runs
    return run


def at(run: Run, metric: str, step: int) -> float:
    """The one value of a metric at a step of the lineage."""
    series = run.series(metric)
    (value,) = series["value"][series["step"] == step]
    return float(value)


def kinds(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for quirk in run.quirks:
        found[quirk.kind] = found.get(quirk.kind, 0) + quirk.count
    return found


@pytest.mark.parametrize(
    ("file", "step", "loss", "last_step", "last_loss"),
    [
        ("4-alibi-bf16-1796229", 2400, 3.717, 7800, 6.67),
        ("4-alibi-nods-1814186", 1000, 5.95, 2600, 15.68),
        ("4-alibi-fp32-1796300", 2400, 3.769, 3800, 5.64),
    ],
)
def test_megatron_runs_that_blow_up(
    file: str, step: int, loss: float, last_step: int, last_loss: float
) -> None:
    run = read(f"megatron-text/blowup-{file}.out")
    assert run.sources[0].reader == "megatron-text"
    assert at(run, "train/loss", step) == pytest.approx(loss, abs=0.005)
    assert at(run, "train/loss", last_step) == pytest.approx(last_loss, abs=0.005)
    assert run.units["train/loss"] == "nats/token"
    assert (run.facts.seq_len, run.facts.steps_planned) == (2048, 148693)
    assert run.facts.batch_sequences is None  # the batch grows during this run
    logged = run.table[is_logged(run.table["tokens"])]
    assert (logged["tokens"] == logged["samples"] * 2048).all()
    assert set(np.diff(run.series("eval/validation/loss")["step"])) == {100}
    ratio = (
        np.log(run.series("eval/validation/perplexity")["value"])
        / run.series("eval/validation/loss")["value"]
    )
    assert np.allclose(ratio[run.series("eval/validation/loss")["value"] < 20], 1, atol=1e-6)


@pytest.mark.parametrize("file", ["3-adam-1793490", "4-adam-alibi-1794235"])
def test_megatron_runs_that_never_learn(file: str) -> None:
    run = read(f"megatron-text/blowup-{file}.out")
    assert run.series("train/loss")["value"].min() > 7


def test_an_error_file_of_slurm_is_no_log() -> None:
    with pytest.raises(NotALog, match="in no format known"):
        read("megatron-text/blowup-3-adam-gpu1-1793503.err")


def test_mixtral_golden_values() -> None:
    run = read("megatron-golden/mixtral_8x7b_a100.json")
    assert run.sources[0].reader == "megatron-golden"
    loss = run.series("train/loss").set_index("step")["value"]
    assert loss[4040] == pytest.approx(2.44, abs=0.03)
    assert loss[4050] == pytest.approx(3.84, abs=0.005)
    assert loss[4055] == pytest.approx(5.11, abs=0.005)
    assert loss[4085] < 2.6
    for spike in (2425, 3735, 4575, 5300, 5875):
        around = loss[(loss.index > spike - 60) & (loss.index < spike + 60)]
        assert loss.loc[spike - 10 : spike + 10].max() > around.median() + 0.05, spike
    assert loss.index.max() == 23405
    assert not np.isnan(loss).any()  # the text "nan" is a value that is missing
    missing = next(quirk for quirk in run.quirks if quirk.kind == "text_nan")
    assert (missing.count, missing.where) == (1707, "lm loss, steps 13555-24000")
    assert (run.units["mem-allocated-bytes"], run.units["iteration-time"]) == ("bytes", "s")


def test_a_resume_repeats_its_run_from_where_it_began() -> None:
    whole, resumed = read("megatron-golden/gpt3_resume.json"), read("megatron-golden/gpt3_resume_2nd.json")
    assert resumed.series("train/loss")["step"].tolist() == list(range(51, 101))
    both = whole.series("train/loss")["value"].iloc[50:].to_numpy()
    np.testing.assert_allclose(resumed.series("train/loss")["value"], both, atol=1e-3)


def test_an_empty_golden_file_is_named_for_what_it_is() -> None:
    with pytest.raises(NotALog, match=r"empty\.json: is empty \(0 bytes\)"):
        read("megatron-golden/empty.json")


def test_nanogpt() -> None:
    run = read("nanogpt-text/gpt2_output.log")
    assert run.sources[0].reader == "nanogpt"
    assert at(run, "eval/train/loss", 0) == 4.4501
    assert at(run, "eval/validation/loss", 2000) == 4.2661
    assert at(run, "train/loss", 0) == 4.4512
    assert run.series("eval/validation/loss")["step"].tolist() == list(range(0, 2001, 200))
    mfu = run.series("mfu")["value"]
    assert run.units["mfu"] == "fraction"
    assert mfu.min() > 0  # -100 % says that nothing was measured
    assert (kinds(run)["sentinel"], kinds(run)["over_100_percent"]) == (5, int((mfu > 1).sum()))
    assert at(run, "step_time", 0) == pytest.approx(23.21837)


def test_a_traceback_is_no_log() -> None:
    with pytest.raises(NotALog):
        read("nanogpt-text/crashed_output.log")


@pytest.mark.parametrize(
    ("place", "loss"),
    [
        ("log_1_epoch/nanogpt-train-1806877.out", 3.0663),
        ("log_bigger/log.txt", 2.9147),
        ("log_bigger/nanogpt-bigger-1818620.out", 2.9147),
        ("log_no_warmup/log.txt", 3.1681),
        ("log_no_warmup/nanogpt-nowarmup-1816358.out", 3.1681),
        ("log_linear_lr/log.txt", 3.0843),
    ],
)
def test_build_nanogpt(place: str, loss: float) -> None:
    run = read(f"build-nanogpt/{place}")
    assert run.sources[0].reader == "build-nanogpt"
    assert run.series("eval/validation/loss").iloc[-1].tolist()[1::2] == [19072, loss]
    assert run.series("train/loss")["step"].tolist() == list(range(19073))
    accuracy = run.series("eval/hellaswag/accuracy")["value"]
    assert run.units["eval/hellaswag/accuracy"] == "accuracy"
    assert accuracy.between(0.2, 0.4).all()
    assert run.series("train/loss")["value"].min() > 2.5  # no accuracy in the loss


@pytest.mark.parametrize(
    ("folder", "out"), [("log_bigger", "bigger-1818620"), ("log_no_warmup", "nowarmup-1816358")]
)
def test_both_logs_of_one_build_nanogpt_run_agree(folder: str, out: str) -> None:
    short, long = read(f"build-nanogpt/{folder}/log.txt"), read(f"build-nanogpt/{folder}/nanogpt-{out}.out")
    for metric in ("train/loss", "eval/validation/loss", "eval/hellaswag/accuracy"):
        a, b = short.series(metric), long.series(metric)
        assert a["step"].tolist() == b["step"].tolist()
        assert a["value"].tolist() == b["value"].tolist()
    generated = next(quirk for quirk in long.quirks if quirk.kind == "interleaved_ranks")
    assert "ranks 0-3" in generated.action
    assert generated.where.startswith("lines 262, ")


def test_the_facts_of_a_build_nanogpt_run_are_read_with_their_thousands_commas() -> None:
    run = read("build-nanogpt/log_1_epoch/nanogpt-train-1806877.out")
    assert run.facts.params_total == 124_354_560 + 121_344
    assert run.facts.tokens_per_step == 524_288
    assert run.table["tokens"].iloc[-1] == 19_073 * 524_288


def test_a_build_nanogpt_run_that_died() -> None:
    run = read("build-nanogpt/log/log.txt")
    assert run.series("train/loss")["step"].iloc[-1] == 94
    assert at(run, "eval/validation/loss", 0) == 10.9310


@pytest.mark.parametrize("step", [11_352, 14_859])
def test_steps_that_stand_out_in_every_run_of_one_data_order(step: int) -> None:
    for folder in ("log_bigger", "log_no_warmup", "log_linear_lr"):
        loss = read(f"build-nanogpt/{folder}/log.txt").series("train/loss")["value"].to_numpy()
        assert loss[step] == loss[step - 3 : step + 4].max(), folder
        around = loss[step - 100 : step + 101]
        assert loss[step] > np.median(around) + 1.9 * around.std(), folder


@pytest.mark.parametrize(
    ("file", "reader", "last_step", "loss"),
    [
        ("2024-10-13_llmc/main.log", "llm-c", 19560, 3.2722),
        ("2025-01-18/main.log", "llm-c", 60000, 2.9282),
        ("2024-06-06_AdamW/f66d43d7-e449-4029-8adf-e8537bab49ea.log", "llm-c", 9536, 3.275959),
        ("2025-01-18/241dd7a7-3d76-4dce-85a4-7df60387f32a.txt", "modded-nanogpt", 7500, 2.9166),
    ],
)
def test_final_validation_losses_of_modded_nanogpt(
    file: str, reader: str, last_step: int, loss: float
) -> None:
    run = read(f"modded-nanogpt/{file}")
    assert run.sources[0].reader == reader
    assert run.series("eval/validation/loss").iloc[-1].tolist()[1::2] == [last_step, loss]


def test_the_four_optimizers_of_modded_nanogpt() -> None:
    runs = read_logs(PUBLIC / "modded-nanogpt" / "2024-10-29_Optimizers").runs
    finals = sorted(run.series("eval/validation/loss")["value"].iloc[-1] for run in runs)
    assert finals == [3.2752, 3.2760, 3.2858, 3.3406]
    for run in runs:
        assert run.series("train/loss")["step"].tolist() == list(range(1, 5101))
        assert run.units["step_avg"] == "s"
        assert not np.isnan(run.series("step_avg")["value"]).any()  # `nanms` is a time not measured yet
        assert kinds(run)["torn_line"] == 1  # the first letter of each of these files is missing


def test_newer_logs_of_modded_nanogpt_have_no_training_loss() -> None:
    folder = PUBLIC / "modded-nanogpt" / "2026-07-17_FP8DownProjection" / "baseline"
    runs = read_logs(folder).runs
    assert len(runs) == 6
    for run in runs:
        assert "train/loss" not in run.metrics
        assert run.series("train_time")["step"].tolist() == list(range(1391))
    assert 3.27 < np.mean([run.series("eval/validation/loss")["value"].iloc[-1] for run in runs]) < 3.29


def test_a_line_of_llm_c_before_the_training_line_of_its_step() -> None:
    run = read("modded-nanogpt/2024-10-13_llmc/main.log")
    assert (at(run, "eval/validation/loss", 0), at(run, "train/loss", 0)) == (11.0092, 11.0091)
    assert not {"rewind", "duplicate_step"} & set(kinds(run))


def test_torchtitan_losses() -> None:
    run = read("torchtitan/losses/llama3_cuda.txt")
    assert run.sources[0].reader == "torchtitan"
    loss = run.series("train/loss")
    assert loss["step"].tolist() == list(range(1, 101))
    assert loss["value"].iloc[[0, -1]].tolist() == pytest.approx([8.0490971, 2.7464717], abs=1e-7)
    assert run.facts.steps_from == 1
    assert any("no header" in text for text in run.inferred)


def test_trainer_states_of_hugging_face() -> None:
    run = read("hf-trainer/cpt_trainer_state.json")
    assert run.sources[0].reader == "hf-trainer-state"
    assert not any("predict" in name for name in run.metrics)
    assert kinds(run)["predictions"] == 10
    assert run.series("train/loss")["step"].tolist() == list(range(500, 5001, 500))
    assert at(run, "train/loss", 1000) == 0.6419
    assert run.series("train_loss")["value"].tolist() == [0.4479398911550831]  # a mean over the training
    assert run.facts.steps_planned == 5490
    whisper = read("hf-trainer/whisper_trainer_state.json")
    assert at(whisper, "eval/validation/loss", 5000) == 0.4200145900249481
    assert whisper.units["eval_wer"] == "unknown"


@pytest.mark.parametrize(
    ("size", "bpb", "parameters"),
    [
        ("130m", 1.18623, 154_147_328),
        ("300m", 1.06908, None),
        ("520m", 0.99901, None),
        ("1_2b", 0.94422, None),
    ],
)
def test_marin_speedruns(size: str, bpb: float, parameters: int | None) -> None:
    run = read(f"marin/speedrun_{size}.json")
    metric = "eval/paloma/c4_en/loss_bpb"
    assert run.units[metric] == "bits/byte"
    assert run.series(metric)["value"].tolist() == pytest.approx([bpb], abs=5e-6)
    assert run.table["tokens"].tolist() == [run.facts.tokens_planned]
    assert parameters in (None, run.facts.params_total)
    assert kinds(run)["final_point_only"] == 1


def test_mixtures_of_doremi_are_no_logs() -> None:
    with pytest.raises(NotALog):
        read("doremi/configs/pile_uniform.json")
