"""Readers: each format found by its content, values as other programs read them, faults named."""

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.naming import canonical_names
from logs.readers import NotALog, readers, take_sample
from logs.schema import Run, is_logged

SHARED = Path(__file__).parents[3] / "shared" / "public"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public logs ({SHARED}) are not here")


def read_one(path: Path) -> Run:
    (run,) = read_logs(path).runs
    return run


def write_run_folder(folder: Path, lines: list[str], facts: dict | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "facts.json").write_text(json.dumps(facts or {"tokens_per_step": 8}))
    (folder / "config.yaml").write_text("width: 64\n")
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


TRAINED = [
    '{"step": 0, "tokens": 8, "wall_time": 1.5, "train/loss": 6.5, "lr": 0.0, "router/entropy": 1.0}',
    '{"step": 1, "tokens": 16, "wall_time": 2.5, "train/loss": NaN, "lr": 0.1}',
    '{"step": 1, "tokens": 16, "eval/code/loss": 6.25, "eval/code/loss_bpb": 2.5}',
    '{"step": 2, "tokens": 24, "wall_time": 3.5, "train/loss": Infinity, "lr": 0.2}',
]


def test_every_module_in_the_folder_is_a_reader() -> None:
    names = {reader.NAME for reader in readers()}
    assert names >= {"marin-tables", "maquette-run", "csv", "json-lines"}
    for reader in readers():
        assert reader.VERSION
        assert callable(reader.matches)
        assert callable(reader.read)


@needs_shared
def test_at_most_one_special_reader_claims_a_file() -> None:
    special = [reader for reader in readers() if not getattr(reader, "FALLBACK", False)]
    for path in sorted(SHARED.rglob("*")):
        if path.is_file() and path.stat().st_size:
            try:
                sample = take_sample(path)
            except NotALog:
                continue
            assert sum(reader.matches(sample) for reader in special) <= 1, path


def test_run_folder(tmp_path: Path) -> None:
    run = read_one(write_run_folder(tmp_path / "small", TRAINED))
    assert run.name == "small"
    assert run.facts.tokens_per_step == 8
    loss = run.series("train/loss")
    assert loss["step"].tolist() == [0, 1, 2]
    assert loss["tokens"].tolist() == [8, 16, 24]
    assert loss["value"].iloc[0] == 6.5
    assert math.isnan(loss["value"].iloc[1])
    assert loss["value"].iloc[2] == math.inf
    assert run.series("eval/code/loss_bpb")["value"].tolist() == [2.5]
    assert run.units["eval/code/loss_bpb"] == "bits/byte"
    assert run.units["router/entropy"] == "1"
    assert is_logged(run.table["router/entropy"]).tolist() == [True, False, False, False]
    assert {quirk.kind: quirk.count for quirk in run.quirks} == {"non_finite": 2}


@given(cut=st.integers(1, len(TRAINED[-1]) - 1))
@settings(max_examples=40, deadline=None)
def test_a_last_line_cut_off_anywhere_is_a_quirk(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("run") / "small"
    run = read_one(write_run_folder(folder, [*TRAINED[:-1], TRAINED[-1][:cut]]))
    assert run.table["step"].tolist() == [0, 1, 1]
    (torn,) = [quirk for quirk in run.quirks if quirk.kind == "torn_tail"]
    assert (torn.count, torn.where) == (1, "line 4")


def test_lines_that_are_no_rows_are_counted_with_their_numbers(tmp_path: Path) -> None:
    lines = [
        "{}",
        TRAINED[0],
        "not json",
        "[1, 2]",
        '{"step": 1, "train/loss": "nan"}',
        '{"step": true, "x": 1}',
    ]
    lines += ['{"step": 1.5, "x": 1}', '{"step": 2, "train/loss": "high", "note": "text"}', TRAINED[3]]
    found = {quirk.kind: quirk for quirk in read_one(write_run_folder(tmp_path / "r", lines)).quirks}
    assert (found["broken_line"].count, found["broken_line"].where) == (2, "line 3, 4")
    assert (found["no_step"].count, found["no_step"].where) == (3, "line 1, 6, 7")
    assert found["text_value"].count == 1


def test_a_run_resumed_after_a_kill_counts_from_its_checkpoint(tmp_path: Path) -> None:
    rows = [
        json.dumps({"step": step, "train/loss": 1.0 + i / 10}) for i, step in enumerate([0, 1, 2, 3, 2, 3, 4])
    ]
    run = read_one(write_run_folder(tmp_path / "r", rows))
    np.testing.assert_allclose(run.series("train/loss")["value"], [1.0, 1.1, 1.4, 1.5, 1.6])
    assert run.series("train/loss")["tokens"].tolist() == [8, 16, 24, 32, 40]
    assert {quirk.kind for quirk in run.quirks} == {"rewind", "overlap"}


def test_a_fact_that_training_does_not_write_is_an_error(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "r", TRAINED, {"tokens_per_steps": 8})
    with pytest.raises(InputError, match="did you mean `tokens_per_step`"):
        read_logs(folder)


def test_tokens_that_contradict_the_steps_are_kept_and_listed(tmp_path: Path) -> None:
    run = read_one(
        write_run_folder(tmp_path / "r", ['{"step": 0, "tokens": 9, "train/loss": 1}', TRAINED[3]])
    )
    assert run.table["tokens"].tolist() == [9, 24]
    assert [quirk.count for quirk in run.quirks if quirk.kind == "tokens_disagree"] == [1]


def test_csv_keeps_empty_and_nan_apart_and_unknown_metrics_under_their_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("global_step,train_loss,my own metric,note\n0,2.5,,a\n10,nan,1e-3,b\n20,inf,,\n,1.0,,c\n")
    run = read_one(path)
    assert run.metrics == ["train/loss", "my own metric"]
    assert run.units == {"train/loss": "nats/token", "my own metric": "unknown"}
    assert run.table["step"].tolist() == [0, 10, 20]
    assert is_logged(run.table["my own metric"]).tolist() == [False, True, False]
    assert math.isnan(run.series("train/loss")["value"].iloc[1])
    kinds = {quirk.kind: quirk.count for quirk in run.quirks}
    assert kinds == {"text_value": 3, "no_step": 1, "non_finite": 2, "thinned": 3}
    assert run.table["tokens"].isna().all()


def test_tokens_come_from_steps_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("step\tloss\n0\t2.5\n1\t2.4\n")
    (run,) = read_logs(path, tokens_per_step=100).runs
    assert run.table["tokens"].tolist() == [100, 200]
    assert run.inferred == ("tokens = (step + 1) * 100 in 2 rows of 2; 0 of 0 logged cells agree",)
    with pytest.raises(InputError, match="at least 1"):
        read_logs(path, tokens_per_step=0)


def test_csv_lines_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,lr\n0,2.5,1\n1,2.4\n2,2.3,1\n3,2.2,1,9\n4,2.1,1\n5,2")
    run = read_one(path)
    assert run.table["step"].tolist() == [0, 2, 4]
    found = {quirk.kind: quirk.where for quirk in run.quirks}
    assert found == {"broken_line": "line 3, 5", "torn_tail": "line 7", "thinned": "every 2 steps"}
    path.write_text("step,loss,lr\n0,2.5,1\n1,2.4,1\n2,2")
    assert "torn_tail" in {quirk.kind for quirk in read_one(path).quirks}


@needs_shared
@pytest.mark.parametrize(
    ("name", "column", "metric"),
    [
        ("olmo-ladder/190M-1xC.csv", "optim/learning_rate_group0", "lr"),
        (
            "olmo-ladder/1B-1xC.csv",
            "eval/c4_en-validation/CrossEntropyLoss",
            "eval/c4_en-validation/CrossEntropyLoss",
        ),
        ("nemotron/super_release_nvfp4_100B.csv", "lm_loss", "train/loss"),
    ],
)
def test_real_tables_value_for_value_as_pandas_reads_them(name: str, column: str, metric: str) -> None:
    run = read_one(SHARED / name)
    theirs = pd.read_csv(SHARED / name)
    steps = next(c for c in theirs.columns if canonical_names(list(theirs.columns))[c] == "step")
    logged = theirs[[steps, column]].dropna().sort_values(steps, kind="stable")
    series = run.series(metric)
    assert series["step"].tolist() == logged[steps].astype(int).tolist()
    assert series["value"].tolist() == logged[column].tolist()


@needs_shared
def test_the_empty_file_and_the_git_lfs_pointer_are_named_for_what_they_are() -> None:
    with pytest.raises(InputError, match=r"is empty \(0 bytes\)"):
        read_logs(SHARED / "megatron-golden" / "empty.json")
    with pytest.raises(InputError, match=r"Git-LFS pointer.*git lfs pull"):
        read_logs(SHARED / "hf-trainer" / "lfs_pointer.tfevents")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"\x00\x01\x02" * 100, "binary file"),
        (gzip.compress(b"step,loss\n0,1\n", mtime=0)[:-9], "gzip archive is cut off"),
        (b"a story\nabout nothing\n", "in no format known here; known: .*csv"),
        (b"epoch,loss\n0,1.5\n1,1.4\n", "no column counts steps; it has epoch, loss"),
        (b"step,loss\nfirst,1.5\nsecond,1.4\n", "no row has a whole number"),
        (b"step,loss,loss\n0,1,2\n1,1,2\n", "stands twice"),
        (b'{"step": "zero"}\n', "no row has a whole number"),
        (b"step,lo\xffss\n0,1\n1,2\n", "header is not UTF-8"),
    ],
)
def test_bad_files_are_named_with_the_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_logs(path)
    assert str(path) in str(error.value)


@given(
    st.binary(max_size=400)
    | st.text(alphabet='step,loss\t\n0123456789.e-{}":nainf#;', max_size=400).map(str.encode)
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(content)
    refused = ""
    try:
        rows = len(read_one(path).table)
    except InputError as error:
        rows, refused = 0, str(error)
    assert rows or refused.startswith(str(path))
    assert "\n" not in refused


def test_two_columns_never_take_one_name() -> None:
    assert canonical_names(["Step", "loss", "train_loss"]) == {
        "Step": "step",
        "loss": "loss",
        "train_loss": "train/loss",
    }
    assert canonical_names(["step", "_step"]) == {"step": "step", "_step": "_step"}


def test_lightning_writes_what_we_read(tmp_path: Path) -> None:
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.CSVLogger(tmp_path, name="run", version=0)
    values = np.random.default_rng(0).normal(size=20).tolist()
    for step, value in enumerate(values):
        logger.log_metrics({"train_loss": value}, step=step)
        if step % 5 == 4:
            logger.log_metrics({"val_loss": value + 1}, step=step)
    logger.save()
    run = read_one(Path(logger.log_dir) / "metrics.csv")
    assert run.series("train/loss")["value"].tolist() == values
    assert run.series("eval/validation/loss")["step"].tolist() == [4, 9, 14, 19]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "small", TRAINED)
    os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_logs(folder / "pipe")
    reading = read_logs(folder)
    assert [run.name for run in reading.runs] == ["small"]
    assert any(file.endswith("pipe") and "regular" in reason for file, reason in reading.left_alone)


@pytest.mark.parametrize("digits", [400, 5000])
def test_an_integer_of_thousands_of_digits_is_no_traceback(tmp_path: Path, digits: int) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join([TRAINED[0], f'{{"step": {"9" * digits}}}', TRAINED[3]]))
    run = read_one(log)
    assert run.table["step"].tolist() == [0, 2]
    (quirk,) = [quirk for quirk in run.quirks if quirk.kind in ("broken_line", "no_step")]
    assert (quirk.count, quirk.where) == (1, "line 2")
    log.write_text(f'{{"step": {"9" * 5000}}}\n')
    with pytest.raises(InputError):
        read_one(log)
    (tmp_path / "facts.json").write_text(f'{{"tokens_per_step": {"9" * 5000}}}')
    log.write_text("\n".join(TRAINED))
    with pytest.raises(InputError, match=r"facts\.json"):
        read_one(log)


@pytest.mark.parametrize("text", ["step,train/loss\n", "step\tloss", '"step";"loss"\r\n\r\n'])
def test_a_header_without_rows_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.csv").write_text(text, newline="")
    with pytest.raises(InputError, match="no rows below the header"):
        read_logs(tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "step,loss\n-1,9.0\n0,3.5\n1,3.4\n"),
        ("log.jsonl", '{"step": -1, "loss": 9.0}\n{"step": 0, "loss": 3.5}\n{"step": 1, "loss": 3.4}\n'),
    ],
)
def test_a_step_below_zero_is_left_out_and_flagged(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    run = read_one(tmp_path / name)
    assert run.table["step"].tolist() == [0, 1]
    (quirk,) = run.quirks
    assert (quirk.kind, quirk.count) == ("no_step", 1)
    assert "from 0 up" in quirk.action
