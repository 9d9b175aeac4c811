"""Readers of text logs without a public file here: lines as their libraries print them, by the cited sources."""

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.readers import NotALog, find_reader, take_sample
from logs.schema import Run, is_logged

MEGATRON = (
    " [2024-05-01 00:00:{i:02d}] iteration {i:8d}/{n:8d} | consumed samples: {s:12d} | elapsed time per iteration"
    " (ms): {t:.1f} | learning rate: {lr:.6E} | global batch size: {b:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
    " grad norm: {g:.3f} | number of skipped iterations: {z:3d} | number of nan iterations: {z:3d} |"
)
MEGATRON_EVAL = (
    " validation loss at iteration {i} on validation set |"
    " lm loss value: {loss:.6E} | lm loss PPL: {ppl:.6E} | "
)


def megatron(i: int, loss: float | None = None) -> str:
    values = {"s": i * 512, "t": 3000.5 + i, "lr": 1e-4 * i, "b": 512, "g": 0.5 + i, "z": 0, "n": 60}
    return MEGATRON.format(i=i, loss=loss or 10 / i, **values)


def read(path: Path, text: str | bytes, reader: str) -> Run:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (run,) = read_logs(path).runs
    assert run.sources[0].reader == reader
    return run


def series(run: Run, metric: str) -> dict[int, float]:
    points = run.series(metric)
    return dict(zip(points["step"].tolist(), points["value"].tolist(), strict=True))


def quirks(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for quirk in run.quirks:
        found[quirk.kind] = found.get(quirk.kind, 0) + quirk.count
    return found


def test_megatron_lm(tmp_path: Path) -> None:
    lines = ["  seq_length ...................................... 4096", *map(megatron, range(1, 41))]
    lines.insert(21, MEGATRON_EVAL.format(i=20, loss=3.25, ppl=math.exp(3.25)))
    lines.append(" validation loss at the end of training for test data | lm loss value: 2.000000E+00 | ")
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    np.testing.assert_allclose(
        run.series("train/loss")["value"], [round(10 / i, 6) for i in range(1, 41)], rtol=2e-6
    )
    assert series(run, "eval/validation/loss") == {20: 3.25}
    assert series(run, "eval/test/loss") == {40: 2.0}
    assert quirks(run)["no_step"] == 1
    assert series(run, "step_time")[40] == 3040.5 / 1000
    logged = run.table[is_logged(run.table["samples"])]
    assert logged["samples"].tolist() == [512 * i for i in range(1, 41)]
    assert logged["tokens"].tolist() == [512 * 4096 * i for i in range(1, 41)]
    assert logged["wall_time"].iloc[0] == 1714521601  # 2024-05-01 00:00:01 UTC
    assert any("time zone" in text for text in run.inferred)
    assert any("consumed samples * 4096" in text for text in run.inferred)
    assert run.units["number of skipped iterations"] == "unknown"  # an unknown metric keeps its name
    assert run.table["step"].is_monotonic_increasing


@pytest.mark.parametrize("few", [5, 50])
def test_megatron_lines_read_at_once_and_one_by_one_are_equal(tmp_path: Path, few: int) -> None:
    """Below eight lines alike each is read by itself; either way the cells are the same."""
    whole = read(tmp_path / "whole", "\n".join(map(megatron, range(1, 51))), "megatron-text")
    alone = "\n".join(megatron(i) + "\nother text" * 3 for i in range(1, few + 1))
    part = read(tmp_path / "part", alone, "megatron-text")
    for column in part.table.columns[2:]:
        assert part.table[column].tolist() == whole.table[column].tolist()[:few], column


def test_megatron_restart_counts_from_its_checkpoint(tmp_path: Path) -> None:
    steps = [*range(1, 31), *range(21, 41)]
    lines = [megatron(i, 5.0 if k < 30 else 6.0) for k, i in enumerate(steps)]
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    assert len(run.table) == 50
    assert [segment.first_step for segment in run.segments] == [1, 21]
    loss = series(run, "train/loss")
    assert [loss[20], loss[21], loss[30], loss[40]] == [5, 6, 6, 6]
    assert quirks(run) == {"rewind": 1, "overlap": 10}


def test_ranks_that_talk_at_once_are_kept_apart(tmp_path: Path) -> None:
    lines: list[str] = []
    for i in range(1, 21):
        both = [f"{rank}: {megatron(i, 5.5 if rank and i == 7 else 5.0).lstrip()}" for rank in (0, 1)]
        lines += both if i % 2 else reversed(both)
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    assert len(run.table) == 20
    assert set(series(run, "train/loss").values()) == {5.0}
    assert series(run, "rank1/train/loss") == {7: 5.5}
    assert run.units["rank1/train/loss"] == "nats/token"
    (quirk,) = [quirk for quirk in run.quirks if quirk.kind == "interleaved_ranks"]
    assert (quirk.count, quirk.where) == (20, "lines 2, 3, 6, 7, 10 and 15 more")
    assert "1 are kept as rank<k>/<name>" in quirk.action
    assert "rewind" not in quirks(run)


def test_megatron_lines_that_are_odd(tmp_path: Path) -> None:
    lines = [megatron(i) for i in range(1, 21)]
    lines.append(megatron(21)[:150] + megatron(22).lstrip())  # two ranks in one line
    lines.append(megatron(23).replace(f"{10 / 23:.6E}", "nan"))
    lines.append(
        " iteration       25/      60 | learning rate 1.5E-04 | lm loss 2.25 |"
    )  # as the first releases
    lines.append(megatron(26).replace("loss scale: 1.0", "loss scale: none"))
    lines.append(megatron(27)[:230])
    run = read(tmp_path / "log", "\n".join(lines) + "\n", "megatron-text")
    loss, samples = series(run, "train/loss"), dict(zip(run.table["step"], run.table["samples"], strict=True))
    assert 21 not in loss
    assert (samples[21], samples[22]) == (21 * 512, 22 * 512)
    assert loss[22] == pytest.approx(10 / 22, rel=1e-6)
    assert math.isnan(loss[23])
    assert loss[25] == 2.25
    assert series(run, "lr")[25] == 1.5e-4
    found = quirks(run)
    assert (found["broken_line"], found["text_value"], found["non_finite"]) == (2, 1, 1)


def test_gpt_neox(tmp_path: Path) -> None:
    line = (
        " samples/sec: 12.500 | iteration       24/      60 | elapsed time per iteration (ms): 90.0 |"
        " learning rate: 1.234E-04 | approx flops per GPU: 40.1TFLOPS | lm_loss: 2.500000E+00 |"
    )
    run = read(tmp_path / "log", f"{line}\n", "megatron-text")
    assert series(run, "train/loss") == {24: 2.5}
    assert series(run, "approx flops per GPU (TFLOPS)") == {24: 40.1}
    assert series(run, "samples/sec") == {24: 12.5}
    assert series(run, "step_time") == {24: 0.09}


NANOGPT = """step 0: train loss 10.9886, val loss 10.9897
iter 0: loss 10.9901, time 3000.00ms, mfu -100.00%
iter 10: loss 9.5, time 200.00ms, mfu 31.50%
saving checkpoint to out
step 10: train loss nan, val loss 9.4
"""


def test_nanogpt(tmp_path: Path) -> None:
    run = read(tmp_path / "log", NANOGPT, "nanogpt")
    assert series(run, "eval/validation/loss") == {0: 10.9897, 10: 9.4}
    assert series(run, "eval/train/loss")[0] == 10.9886
    assert series(run, "mfu") == {10: 0.315}
    assert series(run, "step_time") == {0: 3.0, 10: 0.2}
    assert quirks(run)["sentinel"] == 1


LLM_C = """val loss 11.009151
HellaSwag: 2497/10042 = 0.248656
step    1/19560 | loss 11.009151 (+nanz)| norm 15.3712 (+nanz)| lr 8.57e-07 | 3056.36 ms | 42.6% bf16 MFU | 17 tok/s
step    2/19560 | loss 10.959012 (-0.50z)| norm 15.2412 (+0.25z)| lr 1.71e-06 | 3050.00 ms | 42.7% bf16 MFU | 18 tok/s
val loss 10.500000
"""


def test_llm_c_standard_output(tmp_path: Path) -> None:
    run = read(tmp_path / "log", LLM_C, "llm-c")
    assert series(run, "train/loss") == {1: 11.009151, 2: 10.959012}
    assert series(run, "eval/validation/loss") == {0: 11.009151, 2: 10.5}
    assert series(run, "eval/hellaswag/accuracy") == {0: 0.248656}
    assert series(run, "loss z-score") == {2: -0.5}
    assert series(run, "mfu")[1] == pytest.approx(0.426)
    assert (run.facts.steps_planned, run.facts.steps_from) == (19560, 1)


TORCHTITAN = (
    "[rank0]:[titan] 2024-11-01 12:00:00,125 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1309  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.5030  \x1b[36mmemory:  1.50GiB(1.58%)  \x1b[34mtps: 12,345  "
    "\x1b[36mtflops: 1,234.56  \x1b[35mmfu: 12.50%\x1b[39m\n"
    "[rank0]:[titan] 2024-11-01 12:00:09,125 - root - INFO - step: 10  loss:  7.5000  memory:  1.50GiB(1.58%)"
    "  tps: 1,000  mfu: 12.50%\n"
    "[rank0]:[titan] 2024-11-01 12:00:10,125 - root - INFO - validate step: 10  loss:  7.2500  memory:  1.50GiB(1.58%)"
    "  tps: 9,999\n"
)


def test_torchtitan_console(tmp_path: Path) -> None:
    run = read(tmp_path / "log", TORCHTITAN, "torchtitan")
    assert series(run, "train/loss") == {1: 8.1309, 10: 7.5}
    assert series(run, "eval/validation/loss") == {10: 7.25}
    assert series(run, "tps per device") == {1: 12345, 10: 1000}
    assert "tokens_per_second" not in run.metrics  # `tps` is per device
    assert (series(run, "memory reserved")[1], run.units["memory reserved"]) == (1.5 * 2**30, "bytes")
    assert series(run, "mfu")[1] == 0.125
    assert run.table["wall_time"].tolist()[0] == 1730462400.125
    assert quirks(run) == {}


def test_tokens_of_a_log_that_counts_from_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(TORCHTITAN)
    (run,) = read_logs(tmp_path / "log", tokens_per_step=100).runs
    assert run.series("train/loss")["tokens"].tolist() == [100, 1000]
    assert any("tokens = step * 100" in text for text in run.inferred)


def mllog(key: str, value: object, **metadata: object) -> str:
    event = {
        "namespace": "",
        "time_ms": 1778657049081,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
    }
    return f"0: :::MLLOG {json.dumps(event | {'metadata': {'file': 'a.py', 'lineno': 1} | metadata})}\n"


def test_mlperf(tmp_path: Path) -> None:
    head = mllog("submission_benchmark", "llama31_8b") + mllog("global_batch_size", 32) + mllog("seed", 7)
    rows = mllog("train_loss", 11.846, samples_count=0, lr=3.125e-06) + mllog(
        "eval_accuracy", 3.29, samples_count=184320
    )
    run = read(tmp_path / "log", "text\n" + head + rows + ":::MLLOG {broken\n", "mlperf")
    assert series(run, "eval/validation/loss") == {5760: 3.29}
    assert (series(run, "train/loss"), series(run, "lr")) == ({0: 11.846}, {0: 3.125e-06})
    assert run.table["samples"].tolist() == [0, 184320]
    assert run.table["wall_time"].tolist() == [1778657049.081] * 2
    assert (run.facts.batch_sequences, run.facts.seed) == (32, 7)
    assert any("step = samples // 32" in text for text in run.inferred)
    assert any("is its validation loss" in text for text in run.inferred)
    assert quirks(run)["broken_line"] == 1


def test_the_accuracy_of_mlperf_bert_is_an_accuracy(tmp_path: Path) -> None:
    log = mllog("submission_benchmark", "bert") + mllog("eval_accuracy", 0.72, step_num=100)
    run = read(tmp_path / "log", log, "mlperf")
    assert run.units["eval/validation/accuracy"] == "accuracy"
    with pytest.raises(InputError, match=r"line 1: counts samples.*global_batch_size"):
        read(tmp_path / "log", mllog("eval_accuracy", 0.72, samples_count=100), "mlperf")


def fairseq(tag: str, **values: object) -> str:
    return f"2024-02-29 08:00:28 | INFO | {tag} | {json.dumps({'epoch': 1, **values})}\n"


def test_fairseq(tmp_path: Path) -> None:
    log = "2024-02-29 07:59:08 | INFO | fairseq.trainer | NOTE: gradient overflow detected\n"
    log += fairseq(
        "train_inner", update=0.012, loss="21.229", moe_gate_loss="21.6108", inner_loss="20.917", ppl="1.98043e+06",
        wps="11941.9", num_updates="10", lr="7.33333e-06", gnorm="27.354", loss_scale="16",
    )  # fmt: skip
    log += fairseq(
        "valid", valid_loss="8.751", valid_nll_loss="8.101", valid_ppl="274.56", valid_num_updates="414"
    )
    log += fairseq("train", train_loss="9.5", train_ppl="724.08", train_num_updates="414")
    log += fairseq("train_inner", update=0.02, loss="inf", ppl="inf", num_updates="420")[:-20] + "\n"
    run = read(tmp_path / "log", log, "fairseq")
    assert series(run, "train/loss") == {10: pytest.approx(20.917 * math.log(2))}
    assert series(run, "eval/validation/loss") == {414: pytest.approx(8.101 * math.log(2))}
    assert series(run, "inner_loss") == {10: 20.917}
    assert (run.units["inner_loss"], run.units["loss"], run.units["train/loss"]) == (
        "bits/token",
        "unknown",
        "nats/token",
    )
    assert series(run, "train_loss") == {414: 9.5}  # the mean of an epoch, under its own name
    assert series(run, "grad_norm") == {10: 27.354}
    assert series(run, "tokens_per_second") == {10: 11941.9}
    assert any("train/loss = inner_loss * ln 2" in text for text in run.inferred)
    assert quirks(run)["broken_line"] == 1


def test_a_loss_of_fairseq_that_is_not_to_base_2_stays_as_it_is(tmp_path: Path) -> None:
    run = read(tmp_path / "log", fairseq("train_inner", loss="3.0", ppl="20.09", num_updates="10"), "fairseq")
    assert "train/loss" not in run.metrics
    assert (series(run, "loss"), run.units["loss"]) == ({10: 3.0}, "unknown")


COMPOSER = """******************************
Config:
composer_version: 0.21.3
******************************
[batch=1/100]:
\t Train time/epoch: 0
\t Train time/batch: 0
\t Train loss/train/total: 10.9736
\t Train metrics/train/LanguageCrossEntropy: 10.9736
\t Train throughput/tokens_per_sec: 20082.8418
\t Train lr-DecoupledAdamW/group0: 0.0001
\t Train note: "text"
[batch=2/100]:
\t Train loss/train/total: 10.9724
[Eval batch=1/10] Eval on c4 data
[Eval batch=10/10] Eval on c4 data:
\t Eval metrics/c4/LanguageCrossEntropy: 9.5000
\t Eval metrics/c4/LanguagePerplexity: 13359.7266
"""


@pytest.mark.parametrize("rank", ["", "0: "])
def test_composer(tmp_path: Path, rank: str) -> None:
    text = "".join(f"{rank}{line}\n" for line in COMPOSER.splitlines())
    run = read(tmp_path / "log", text, "composer")
    assert series(run, "train/loss") == {1: 10.9736, 2: 10.9724}
    assert series(run, "eval/c4/loss") == {2: 9.5}
    assert run.units["eval/c4/perplexity"] == "perplexity"
    assert series(run, "tokens_per_second") == {1: 20082.8418}
    assert series(run, "lr") == {1: 0.0001}
    assert quirks(run)["text_value"] == 1


def test_composer_by_epochs(tmp_path: Path) -> None:
    text = "[epoch=1][batch=5/5]:\n\t Train loss/train/total: 8.4213\n"
    text += "[epoch=2][batch=3/5]:\n\t Train loss/train/total: 7.5\n"
    run = read(tmp_path / "log", text, "composer")
    assert series(run, "train/loss") == {5: 8.4213, 8: 7.5}
    assert run.inferred == ("step = (epoch - 1) * 5 batches in an epoch + batch",)


def test_nemo_progress_printer(tmp_path: Path) -> None:
    text = (
        "[NeMo I 2024-07-22 12:05:15 lr_scheduler:948] Scheduler\n"
        "Training epoch 0, iteration 10/100 | lr: 2.699e-06 | global_batch_size: 512 | global_step: 9 |"
        " reduced_train_loss: 11.03 | train_step_timing in s: 25.9 | consumed_samples: 5120\n"
        "Training epoch 0, iteration 20/100 | global_step: 19 | reduced_train_loss: nan | val_loss: 10.5\n"
    )
    run = read(tmp_path / "log", text, "nemo")
    assert series(run, "train/loss")[9] == 11.03
    assert math.isnan(series(run, "train/loss")[19])
    assert series(run, "step_time") == {9: 25.9}
    assert series(run, "eval/validation/loss") == {19: 10.5}
    assert run.table["samples"].tolist()[0] == 5120


def test_nemo_progress_bars_whose_steps_are_shortened(tmp_path: Path) -> None:
    bars = [
        "Epoch 0: :   0%|          | 189/3000 [59:12<1573:03:24, v_num=3-16, reduced_train_loss=7.560, "
        "global_step=188.0, consumed_samples=24064.0]",
        "Epoch 0: :  66%|██████▋   | 2000/3000 [43:24:54<00:00, reduced_train_loss=0.139, global_step=2e+3, "
        "consumed_samples=2.56e+5, train_step_timing in s=68.70, val_loss=0.212]",
    ]
    run = read(tmp_path / "log", "\r".join(bars) + "[NeMo I 2024-06-17] done\n", "nemo")
    assert series(run, "train/loss") == {188: 7.56, 1999: 0.139}
    assert run.table["samples"].tolist()[0] == 24064
    assert series(run, "consumed_samples rounded") == {1999: 256000}
    assert any("step = count of the progress bar - 1" in text for text in run.inferred)
    assert quirks(run)["rounded"] == 1


def test_nanotron(tmp_path: Path) -> None:
    line = (
        "[default0]:\x1b[2;3m07/02 13:37:00 [INFO|DP=0|PP=0|TP=0|node-1]\x1b[0m: iteration: {} / 100 | consumed_tokens:"
        " {} | time_per_iteration_ms: 90.4 | tokens_per_sec: 11.3K | global_batch_size: 1.02K | grad_norm: 1.4M |"
        " lr: 3.3e-05 | lm_loss: 9.2 | model_tflops_per_gpu: 0.784 | cuda_memory_allocated: text\n"
    )
    run = read(tmp_path / "log", line.format(91, "93.2K") + line.format(92, "94.2K"), "nanotron")
    assert series(run, "train/loss") == {91: 9.2, 92: 9.2}
    assert series(run, "grad_norm")[91] == 1.4e6
    assert series(run, "tokens_per_second")[91] == 11300
    assert series(run, "consumed_tokens") == {91: 93200, 92: 94200}
    assert run.table["tokens"].isna().all()  # rounded to three digits, so no axis
    assert quirks(run)["rounded"] == 2


def test_levanter_json_logger(tmp_path: Path) -> None:
    event = {"tracker": "json_logger", "event": "log", "step": 10, "metrics": {}}
    metrics = {"train/loss": 4.5, "throughput/mfu": 41.5, "eval/paloma/c4_en/bpb": 1.25, "eval/loss": 4.25}
    log = (
        "2026-01-01T00:00:00 - 0 - levanter.json_logger - INFO - "
        + json.dumps(event | {"metrics": metrics})
        + "\n"
    )
    log += json.dumps(event | {"step": None, "metrics": {"a": 1}}) + "\n"
    log += (
        json.dumps(
            event | {"step": 11, "metrics": {"train/loss": "NaN", "h": {"min": 0.5, "counts": [1, 2]}}}
        )
        + "\n"
    )
    log += "Progress on:train 11.0it/18.0it rate:34.5s/it remaining:04:01 elapsed:17:46 postfix:loss=15.5\n"
    run = read(tmp_path / "log", log, "levanter")
    assert series(run, "train/loss")[10] == 4.5
    assert math.isnan(series(run, "train/loss")[11])
    assert series(run, "mfu") == {10: pytest.approx(0.415)}
    assert run.units["eval/paloma/c4_en/loss_bpb"] == "bits/byte"
    assert series(run, "eval/validation/loss") == {10: 4.25}
    assert series(run, "h/min") == {11: 0.5}
    assert quirks(run)["no_step"] == quirks(run)["text_value"] == quirks(run)["progress_lines"] == 1


def test_levanter_progress_lines(tmp_path: Path) -> None:
    log = (
        "Progress on:train -/18\nProgress on:train 1.00it/18.0it rate:483.9s/it\n"
        "Progress on:train 11.0it/18.0it rate:34.5s/it remaining:04:01 elapsed:17:46 postfix:loss=15.5\n"
        "Progress on:train 4.77kit/5.00kit rate:1.1it/s remaining:04:01 elapsed:17:46 postfix:loss=3.25\n"
    )
    run = read(tmp_path / "log", log, "levanter")
    assert series(run, "train/loss") == {10: 15.5, 4769: 3.25}
    assert quirks(run)["rounded"] == 1


def trackio(path: Path, rows: list[tuple[str, int, object]]) -> Path:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, run_name TEXT NOT"
            " NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
        )
        database.executemany(
            "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('2026-01-01T00:00:00.5', ?, ?, ?)",
            [
                (name, step, metrics if isinstance(metrics, str) else json.dumps(metrics))
                for name, step, metrics in rows
            ],
        )
    database.close()
    return path


def test_trackio(tmp_path: Path) -> None:
    rows = [
        ("a b", 0, {"train/loss": 2.0, "note": "x"}),
        ("a/b", 0, {"train/loss": 5.0}),
        ("a b", 1, {"train/loss": "NaN"}),
    ]
    path = trackio(tmp_path / "project.db", [*rows, ("a b", 2, "{broken")])
    runs = {run.name: run for run in read_logs(path).runs}
    assert sorted(runs) == ["project/a-b", "project/a-b-2"]
    assert series(runs["project/a-b"], "train/loss")[0] == 2.0
    assert math.isnan(series(runs["project/a-b"], "train/loss")[1])
    assert series(runs["project/a-b-2"], "train/loss") == {0: 5.0}
    assert runs["project/a-b"].table["wall_time"].tolist()[0] == 1767225600.5
    assert quirks(runs["project/a-b"])["broken_line"] == 1


def test_a_trackio_database_that_is_damaged_or_empty_or_none(tmp_path: Path) -> None:
    path = trackio(tmp_path / "a.db", [("run", i, {"train/loss": 1.0}) for i in range(3000)])
    data = bytearray(path.read_bytes())
    data[8192:40960] = b"\xff" * 32768
    path.write_bytes(data)
    with pytest.raises(InputError, match="SQLite database"):
        read_logs(path)
    with pytest.raises(NotALog, match="no logged step"):
        read_logs(trackio(tmp_path / "b.db", []))
    other = tmp_path / "c.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE VIEW metrics AS SELECT 1 AS run_name")
    database.close()
    with pytest.raises(InputError, match="without Trackio's table"):
        read_logs(other)


def test_a_trainer_state_of_transformers(tmp_path: Path) -> None:
    state = {
        "global_step": 20,
        "log_history": [
            {
                "step": 10,
                "loss": 3.5,
                "learning_rate": 1e-4,
                "grad_norm": "inf",
                "num_input_tokens_seen": 5120,
            },
            {"step": 10, "eval_loss": 3.25, "eval_code_loss": 2.5, "eval_accuracy": 0.5},
            {"predict_loss": 3.0},
            {"epoch": 1.0},
            "text",
            {"step": 20, "train_loss": 3.4, "train_runtime": 10.0, "note": "x"},
        ],
    }
    run = read(tmp_path / "state.json", json.dumps(state), "hf-trainer-state")
    assert series(run, "train/loss") == {10: 3.5}
    assert series(run, "train_loss") == {20: 3.4}
    assert series(run, "eval/validation/loss") == {10: 3.25}
    assert series(run, "eval/code/loss") == {10: 2.5}
    assert run.units["eval/validation/accuracy"] == "accuracy"
    assert run.table["tokens"].tolist()[0] == 5120
    found = quirks(run)
    assert [
        found[kind] for kind in ("predictions", "no_step", "broken_record", "text_value", "non_finite")
    ] == [1] * 5


def test_golden_values_as_a_list_and_faults_in_them(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    series_of = {"start_step": 0, "end_step": 20, "step_interval": 5}
    run = read(
        path, json.dumps({"lm loss": series_of | {"values": [4.0, 3.0, "nan", 2.0]}}), "megatron-golden"
    )
    assert series(run, "train/loss") == {0: 4.0, 5: 3.0, 15: 2.0}
    with pytest.raises(InputError, match=r"golden\.json.*`lm loss` has no `values`"):
        read(path, json.dumps({"lm loss": series_of}), "megatron-golden")
    with pytest.raises(InputError, match=r"line 1, column .* not JSON"):
        read(path, json.dumps({"lm loss": series_of | {"values": {"1": 2.0}}})[:-5], "megatron-golden")
    twice = (
        '{"lm loss": {"start_step": 1, "end_step": 2, "step_interval": 1, "values": {"1": 4.0, "1": 5.0}}}'
    )
    assert quirks(read(path, twice, "megatron-golden"))["duplicate_key"] == 1


SAMPLES = {
    "megatron-text": megatron(1) + "\n",
    "nanogpt": NANOGPT,
    "llm-c": LLM_C,
    "torchtitan": TORCHTITAN,
    "mlperf": mllog("train_loss", 11.8, step_num=3),
    "fairseq": fairseq("train_inner", loss="3.0", num_updates="10"),
    "composer": COMPOSER,
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_log_is_found_behind_a_long_beginning(tmp_path: Path, name: str) -> None:
    """Many logs begin with source code, configuration or the output of compilers."""
    path = tmp_path / "log"
    path.write_text("import torch  # step = 1\n" * 40_000 + SAMPLES[name])
    assert name == find_reader(take_sample(path)).NAME
    (run,) = read_logs(path).runs
    assert len(run.table)
