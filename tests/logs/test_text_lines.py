"""Lines of text logs: any end, encoding and length, and whatever bytes a file holds."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.parsing import text_lines
from logs.parsing.text_lines import Notes, is_cut_off, number, split_rank, text_blocks, timestamp
from logs.readers import readers, take_sample
from logs.schema import Run

MEGATRON = (
    "0:  iteration {i:8d}/     100 | consumed samples: {i:12d} | elapsed time per iteration (ms): 90.5 | "
    "learning rate: 1.000000E-04 | lm loss: {i:.6E} | grad norm: 0.500 |\n"
)
MLLOG = ':::MLLOG {"namespace": "", "time_ms": 5, "key": "train_loss", "value": 2.5, "metadata": {"step_num": 4}}\n'
EVENT = '{"tracker": "json_logger", "event": "log", "step": 10, "metrics": {"train/loss": 4.5}}\n'
GOLDEN = (
    '{"lm loss": {"start_step": 1, "end_step": 2, "step_interval": 1, "values": {"1": 9.5, "2": "nan"}}}\n'
)
STATE = '{"global_step": 9, "log_history": [{"step": 9, "loss": 2.5}, {"predict_loss": 1.0}]}\n'
SPEEDRUN = '{"runs": [{"run_info": {"eval/c4/bpb": 1.1, "train_config": {"num_train_steps": 9}}}]}\n'
LOGS = {
    "megatron-text": "".join(MEGATRON.format(i=i) for i in range(1, 12)),
    "nanogpt": "step 0: train loss 4.5, val loss 4.4\niter 0: loss 4.45, time 23.37ms, mfu -100.00%\n",
    "build-nanogpt": "0 val 10.9310\n0 hella 0.2413\n0 train 10.934416\n1 train 10.883945\n",
    "llm-c": "s:0 tel:11.0092\ns:0 trl:11.0091 lr:0.000001 norm:15.37\ns:1 trl:10.9598 lr:0.000002 norm:15.24\n",
    "modded-nanogpt": "step:0/9 val_loss:10.82 train_time:0ms step_avg:nanms\nstep:1/9 train_time:90ms\n",
    "torchtitan": "step:  1  loss:  8.1309  memory:  0.99GiB(1.04%)  tps: 1,234  mfu: 0.01%\n",
    "mlperf": MLLOG,
    "fairseq": '{"epoch": 1, "update": 0.01, "loss": "3.000", "ppl": "8.0", "num_updates": "10", "lr": "1e-05"}\n',
    "composer": "[batch=1/9]:\n\t Train loss/train/total: 9.9\n[Eval batch=2/2] Eval on c4 data:\n\t Eval a: 3.0\n",
    "nemo": "Training epoch 0, iteration 9/99 | lr: 2.699e-06 | global_step: 8 | reduced_train_loss: 11.03\n",
    "nanotron": "[INFO|DP=0]: iteration: 9 / 99 | consumed_tokens: 9.2K | lm_loss: 9.2 | lr: 3.3e-05\n",
    "levanter": EVENT + "Progress on:train 2.00it/9.0it rate:1.0s/it postfix:loss=15.5\n",
    "megatron-golden": GOLDEN,
    "hf-trainer-state": STATE,
    "marin-speedrun": SPEEDRUN,
}
"""One small log of every text and JSON format."""


def read(path: Path, data: bytes) -> Run:
    path.write_bytes(data)
    (run,) = read_logs(path).runs
    return run


@pytest.mark.parametrize("name", sorted(LOGS))
def test_every_small_log_is_found_by_its_content(tmp_path: Path, name: str) -> None:
    run = read(tmp_path / "log", LOGS[name].encode())
    assert run.sources[0].reader == name
    assert len(run.table)


@pytest.mark.parametrize("name", sorted(LOGS))
@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n\r\n"])
def test_line_ends_make_no_difference(tmp_path: Path, name: str, ends: str) -> None:
    plain = read(tmp_path / "a", LOGS[name].encode())
    other = read(tmp_path / "b", LOGS[name].replace("\n", ends).encode())
    assert other.table.drop(columns=["run", "segment"]).equals(plain.table.drop(columns=["run", "segment"]))


@pytest.mark.parametrize("name", sorted(LOGS))
def test_a_byte_order_mark_makes_no_difference(tmp_path: Path, name: str) -> None:
    plain = read(tmp_path / "a", LOGS[name].encode())
    other = read(tmp_path / "b", LOGS[name].encode("utf-8-sig"))
    assert other.table.drop(columns=["run", "segment"]).equals(plain.table.drop(columns=["run", "segment"]))


def quirk(run: Run, kind: str) -> tuple[int, str]:
    (found,) = [quirk for quirk in run.quirks if quirk.kind == kind]
    return found.count, found.where


def test_foreign_bytes_and_nul_bytes_are_noted_with_their_lines(tmp_path: Path) -> None:
    lines = LOGS["llm-c"].encode().splitlines(keepends=True)
    run = read(tmp_path / "log", b"".join([b"caf\xe9\n", lines[0], b"\xff\xfe\xfd\n", *lines[1:]]))
    assert quirk(run, "encoding") == (2, "line 1, 3")
    filler = b"x\n" * 40_000  # a file whose beginning holds NUL bytes is taken for a binary one
    run = read(tmp_path / "log", lines[0] + filler + b"\0" * 5000 + b"".join(lines[1:]))
    assert quirk(run, "nul_bytes") == (5000, "line 40002")
    assert run.series("train/loss")["step"].tolist() == [0, 1]


def test_a_replacement_character_that_was_written_is_no_foreign_byte(tmp_path: Path) -> None:
    run = read(tmp_path / "log", ("\ufffd\n" + LOGS["llm-c"]).encode())
    assert run.quirks == ()


PEAK = """
import resource, sys
from pathlib import Path
from logs.ingest import read_logs
small, *large = map(Path, sys.argv[1:])
read_logs(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in large:
    (run,) = read_logs(path).runs
    (found,) = [quirk for quirk in run.quirks if quirk.kind == "long_line"]
    assert found.count == 1, path
unit = 1 if sys.platform == "darwin" else 1024
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)
"""


def test_a_line_of_50_mb_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    """In a process of its own, whose peak nothing else has raised."""
    names = ("megatron-text", "fairseq", "composer")  # columns at once, JSON and blocks of lines
    for name in names:
        log = LOGS[name].encode()
        (tmp_path / f"{name}.log").write_bytes(log + b"a: 1 | step " * 4_400_000 + b"\n" + log)
    (tmp_path / "small").write_text(LOGS["megatron-text"])
    files = [str(tmp_path / file) for file in ("small", *(f"{name}.log" for name in names))]
    done = subprocess.run([sys.executable, "-c", PEAK, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**26


@pytest.mark.parametrize("size", [1, 7, 64, 2**20])
def test_blocks_are_the_lines_whatever_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", size)
    text = "a\r\nb\rc\n\nélan\x85 one line\n\x1b[31mred\x1b[0m\nlast"
    (tmp_path / "log").write_bytes(text.encode())
    blocks = list(text_blocks(tmp_path / "log", Notes()))
    lines = [line for _, block in blocks for line in block.split("\n")]
    assert lines == ["a", "b", "c", "", "élan\x85 one line", "red", "last"]
    assert [first for first, _ in blocks] == [
        1 + sum(b.count("\n") + 1 for _, b in blocks[:i]) for i in range(len(blocks))
    ]


@pytest.mark.parametrize("size", [5, 50, 2**20])
def test_a_long_line_does_not_move_the_numbers_of_those_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", size)
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 20)
    (tmp_path / "log").write_bytes(b"one\n" + b"x" * 90 + b"\nthree\nfour\n")
    notes = Notes()
    lines = dict(text_lines.text_lines(tmp_path / "log", notes))
    assert (lines[1], lines[3], lines[4]) == ("one", "three", "four")
    assert lines.get(2, "") in ("", "x" * 90)
    assert notes.lines.get("long_line", [2]) == [2]


@given(cut=st.integers(1, len(LOGS["llm-c"]) - 2))
@settings(max_examples=60)
def test_a_log_cut_off_anywhere_gives_no_value_that_was_not_logged(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """`tel:3.2` is the beginning of `tel:3.2722`: no loss of 3.2 was ever logged."""
    lines = [f"s:{i} trl:{3.2345 + i:.4f} lr:0.000{i + 100} norm:15.3{i}" for i in range(5)]
    text = "\n".join(lines)[: -min(cut, 30)]
    run = read(tmp_path_factory.mktemp("cut") / "log", text.encode())
    loss = run.series("train/loss")
    assert loss["value"].tolist() == [float(f"{3.2345 + i:.4f}") for i in range(len(loss))]
    for name, form in (("grad_norm", "15.3{}"), ("lr", "0.000{}")):
        values = run.series(name)
        shift = 100 if name == "lr" else 0
        assert values["value"].tolist() == [float(form.format(s + shift)) for s in values["step"]]


def test_a_last_line_without_an_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    run = read(tmp_path / "log", LOGS["llm-c"].rstrip("\n").encode())
    assert run.series("train/loss")["step"].tolist() == [0, 1]
    assert run.quirks == ()
    run = read(tmp_path / "log", LOGS["llm-c"][:-2].encode())
    assert run.series("train/loss")["step"].tolist() == [0]
    assert quirk(run, "torn_tail") == (1, "line 3")


@pytest.mark.parametrize(
    ("last", "earlier", "cut"),
    [
        ("loss 3.27", ["loss 3.2722"], True),
        ("loss 3", ["loss 3.2722"], True),
        ("loss 3.2722", ["loss 3.2721"], False),
        ("loss 3.27", ["loss 3.2722", "loss 3.272"], False),  # as many decimals as it pleases
        ("loss 3.27", ["another line"], False),
        ("loss 3.27", [], False),
    ],
)
def test_is_cut_off(last: str, earlier: list[str], cut: bool) -> None:
    assert is_cut_off(last, earlier) == cut


@pytest.mark.parametrize(
    ("line", "rank", "rest"),
    [
        ("0: step", "0", "step"),
        ("[rank12]: step", "12", "step"),
        ("[default3]:step", "3", "step"),
        ("[rank0] step", "0", "step"),
        ("12:30:01 step", "", "12:30:01 step"),
        ("[2024-05-01 00:00:00] step", "", "[2024-05-01 00:00:00] step"),
        ("0 train 10.9", "", "0 train 10.9"),
    ],
)
def test_split_rank(line: str, rank: str, rest: str) -> None:
    assert split_rank(line) == (rank, rest)


def test_number_and_timestamp() -> None:
    assert [number(text) for text in ("1.5", " 1e-3 ", "1_000", "1,5", "", "0x1")] == [
        1.5,
        1e-3,
        None,
        None,
        None,
        None,
    ]
    assert math.isnan(number("nan") or 0)
    assert timestamp("1970-01-01 00:00:01,5") == 1.5
    assert timestamp("1970-01-01T01:00:01+01:00") == 1
    assert timestamp("2024-13-01 00:00:00") is None


PIECES = st.one_of(
    st.sampled_from(list(LOGS.values())).map(str.encode),
    st.binary(max_size=60),
    st.sampled_from(
        [b"\n", b"|", b'{"', b"nan", b"9" * 5000, b"[" * 3000, b"\xff\xfe", b"\0", b"1e999", b"-1"]
    ),
)


@given(pieces=st.lists(PIECES, min_size=1, max_size=6), cuts=st.lists(st.integers(0, 400), max_size=4))
@settings(max_examples=120)
def test_no_bytes_crash_a_reader(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cuts: list[int]
) -> None:
    """Spliced and truncated logs, and random bytes: every reader gives runs or one clear error."""
    data = b"".join(pieces)
    for cut in cuts:
        data = data[:cut] + data[cut + 3 :] if len(data) > cut else data[: len(data) // 2]
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(data)
    for reader in readers():
        if reader.NAME not in LOGS and reader.NAME != "trackio":
            continue
        try:
            reader.matches(take_sample(path))
            for run in reader.read(path):
                assert run.table["step"].ge(0).all()
                json.dumps([quirk.model_dump() for quirk in run.quirks])
        except InputError:
            continue
