"""Tables with one fault each: what is whole is read, what is not is named by its line, and nothing is mixed."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.parsing import opened
from logs.parsing.quoted_lines import logical_rows
from logs.schema import Run

SHARED = Path(__file__).parents[3] / "shared" / "public"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public logs ({SHARED}) are not here")

ROWS = [f"{step},{9 - step / 400:.3f}" for step in range(3000)]


def read_all(path: Path, content: bytes | str) -> list[Run]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_logs(path).runs)


def read_one(path: Path, content: bytes | str) -> Run:
    (run,) = read_all(path, content)
    return run


def places(run: Run) -> dict[str, str]:
    """Where quirks stand, without those that say only how a run was sampled."""
    return {q.kind: q.where for q in run.quirks if q.kind not in ("thinned", "gap", "uneven_sampling")}


def table(rows: list[str], header: str = "step,loss") -> str:
    return "\n".join([header, *rows]) + "\n"


@pytest.mark.parametrize("broken", ['7,"8.9', '7,"8.9"1,', '"7,8.9'])
@pytest.mark.parametrize("at", [7, 2500])
def test_a_stray_quote_costs_its_own_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, at: int
) -> None:
    monkeypatch.setattr(opened, "BLOCK_BYTES", 4096)
    run = read_one(tmp_path / "log.csv", table([*ROWS[:at], broken, *ROWS[at + 1 :]]))
    assert run.table["step"].tolist() == [step for step in range(3000) if step != at]
    kind = "broken_line" if broken.endswith(",") else "stray_quote"
    assert places(run) == {kind: f"line {at + 2}"}


def test_two_stray_quotes_do_not_pair_up_over_the_rows_between_them(tmp_path: Path) -> None:
    rows = [*ROWS[:10], '10,"8.9', *ROWS[11:20], '20,8.9"', *ROWS[21:40]]
    run = read_one(tmp_path / "log.csv", table(rows))
    assert places(run) == {"stray_quote": "line 12", "text_value": "column loss"}
    assert run.table["step"].tolist() == [step for step in range(40) if step != 10]


def test_text_of_several_lines_is_one_cell(tmp_path: Path) -> None:
    rows = [f'{step},"step {step}:\nthe ""best"", so far",{step / 2}' for step in range(200)]
    rows[60] = '60,"nothing closes this,30'
    run = read_one(tmp_path / "log.csv", table(rows, "step,note,loss"))
    assert run.series("train/loss")["value"].tolist() == [step / 2 for step in range(200) if step != 60]
    assert places(run)["stray_quote"] == "line 122"


CELLS = st.text(st.sampled_from('a1",\n'), max_size=6)


@given(st.lists(st.tuples(st.integers(0, 99), CELLS, CELLS), max_size=12))
@settings(max_examples=200, deadline=None)
def test_whole_rows_of_any_text_are_put_together_as_the_standard_library_reads_them(
    rows: list[tuple[int, str, str]],
) -> None:
    import csv

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    kept, starts, stray = logical_rows(text.getvalue().encode(), ",", 3)
    if len(stray) == 0:
        assert kept.decode() == text.getvalue()
        assert len(starts) == len(rows)
    left = text.getvalue().splitlines(keepends=True)
    assert "".join(line for i, line in enumerate(left) if i not in set(stray.tolist())) == kept.decode()


@pytest.mark.parametrize("rows", [ROWS[:300], ROWS])
def test_a_table_saved_newest_first_is_turned_round(tmp_path: Path, rows: list[str]) -> None:
    run = read_one(tmp_path / "log.csv", table(rows[::-1]))
    plain = read_one(tmp_path / "up.csv", table(rows))
    assert run.series("train/loss")["value"].tolist() == plain.series("train/loss")["value"].tolist()
    assert places(run) == {"reversed": f"rows of steps {len(rows) - 1} down to 0"}
    assert len(run.segments) == 1


def test_a_resume_in_a_table_saved_newest_first_counts_from_where_it_began(tmp_path: Path) -> None:
    written = [*((step, 1.0) for step in range(60)), *((step, 2.0) for step in range(40, 90))]
    run = read_one(tmp_path / "log.csv", table([f"{step},{loss}" for step, loss in written[::-1]]))
    assert run.series("train/loss")["value"].tolist() == [1.0] * 40 + [2.0] * 50
    assert {"reversed", "rewind", "overlap"} <= set(places(run))


@needs_shared
def test_a_long_table_of_223_public_runs_comes_out_as_223_runs() -> None:
    path = SHARED / "routing" / "curves.csv.gz"
    theirs = {str(number): rows for number, rows in pd.read_csv(path).groupby("hyper_id")}
    runs = {run.name: run for run in read_logs(path).runs}
    assert set(runs) == {f"curves/hyper_id-{number}" for number in theirs}
    for number, rows in theirs.items():
        series = runs[f"curves/hyper_id-{number}"].series("loss_validation")
        rows = rows.dropna(subset="loss_validation")
        assert series["step"].tolist() == rows["step"].tolist()
        assert series["value"].tolist() == pytest.approx(rows["loss_validation"].tolist(), abs=1e-15)
        assert len(runs[f"curves/hyper_id-{number}"].segments) == 1


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "json"])
def test_a_column_that_names_runs_splits_them_in_any_order(tmp_path: Path, suffix: str) -> None:
    rows = [{"step": s, "run": name, "loss": s + i} for s in range(5) for i, name in enumerate(["a b", "c"])]
    path = tmp_path / f"all.{suffix}"
    frame = pd.DataFrame(rows)
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=suffix == "jsonl")
    runs = read_logs(path).runs
    assert [run.name for run in runs] == ["all/a-b", "all/c"]
    assert [run.series("train/loss")["value"].tolist() for run in runs] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert "which names runs" in runs[0].inferred[0]


@pytest.mark.parametrize(
    ("column", "cells", "starts", "names"),
    [
        ("model", ("small", "large"), (0, 0), ["log/large", "log/small"]),
        ("width", (64, 128), (0, 0), ["log/width-128", "log/width-64"]),
        ("epoch", (0, 1), (0, 0), ["log"]),  # a run goes through its epochs
        ("width", (64, 128), (0, 30), ["log"]),  # a resume
        ("width", (64.5, 128.5), (0, 0), ["log"]),  # a measured value
        ("lr", (1, 2), (0, 0), ["log"]),
    ],
)
def test_runs_are_told_apart_by_what_changes_where_steps_start_again(
    tmp_path: Path, column: str, cells: tuple[object, object], starts: tuple[int, int], names: list[str]
) -> None:
    rows = [
        f"{step},{cell},2.5"
        for cell, start in zip(cells, starts, strict=True)
        for step in range(start, start + 40)
    ]
    runs = read_all(tmp_path / "log.csv", table(rows, f"step,{column},loss"))
    assert [run.name for run in runs] == names
    assert sum(len(run.table) for run in runs) == 80


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("step;loss\n0;1,234\n1;2,345\n2;7\n", "line 2: the '1,234' in column 'loss' may be 1.234 or 1234"),
        ("step;loss\n1.000;3\n2.000;2\n", "line 2: the '1.000' in column 'step' may be 1.000 or 1000"),
        (
            "step;loss;lr\n1.000;3,25;0.5\n2.000;3,5;0.25\n",
            "line 2: the '1.000' in column 'step' may be 1.000 or 1000",
        ),
    ],
)
def test_a_number_that_may_mean_two_things_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_one(tmp_path / "log.csv", content)


def test_thousands_that_come_late_are_read_as_the_head_of_the_file_shows(tmp_path: Path) -> None:
    def german(step: int) -> str:
        return f"{step:,}".replace(",", ".")

    rows = [f"{german(step)};3,{step:06}" for step in range(0, 400_000, 40)]
    run = read_one(tmp_path / "log.csv", table(rows, "step;loss"))
    assert run.table["step"].tolist() == list(range(0, 400_000, 40))
    assert run.series("train/loss")["value"].iloc[-1] == 3.39996
    assert {"decimal_comma", "thousands_point"} <= set(places(run))


@pytest.mark.parametrize(
    ("content", "torn"),
    [
        ("step,loss\n0,3.512\n1,3.401\n2,3.310\n3,3.", True),
        ("step,loss\n0,3.512\n1,3.401\n2,3.310\n3,3", True),
        ("step,loss\n0,3.512\n1,3.401\n2,3.310\n3,", True),
        ("step,loss\n0,3.512\n1,3.401\n2,3.310\n3", True),
        ('step,loss\n0,"3.512"\n1,"3.401"\n2,"3.3', True),
        ("step,loss\r\n0,3.512\r\n1,3.401\r\n2,3.3", True),
        ("step,loss\r0,3.512\r1,3.401\r2,3.3", True),
        ("step,loss\n0,3.5123456\n1,3.401456789\n2,3.310", True),
        ("step,loss\n0,3.5e-4\n1,3.4e-4\n2,3.3e-", True),
        ("step;loss\n0;3,512\n1;3,4011\n2;3,3", True),
        ("step,loss,tokens\n0,3.5,4096\n1,3.4,8192\n2,3.3,12288\n3,3.2,163", True),
        ("step,loss\n0,3.512\n1,3.401\n2,3.310\n3,3.222", False),
        ("step,loss\n0,3.5123\n1,3.4\n2,3.31\n3,3.2", False),
        ("step,loss\n0,3.5\n1,3.41\n2,nan", False),
        ("step,loss\n0,10.512\n1,9.401\n2,8.310", False),
        ("step,loss,tokens\n0,3.5,4096\n1,3.4,8192\n2,3.3,12288", False),
        ("step,loss,val\n0,3.5,\n1,3.4,3.6\n2,3.3,", False),
        ("step,loss\n0,3.5123\n1,3.4012\n2,3.3", True),
        ("step,loss\n0,3.512\n1,3.401\n2,3.310\n3,3.\n", False),
    ],
)
def test_a_last_cell_that_was_cut_off_is_set_aside(tmp_path: Path, content: str, torn: bool) -> None:
    run = read_one(tmp_path / "log.csv", content)
    lines = content.splitlines()
    assert len(run.table) == len(lines) - 1 - torn
    assert places(run).get("torn_tail") == (f"line {len(lines)}" if torn else None)


@given(st.lists(st.floats(-1e3, 1e3).map(lambda v: f"{v:.4f}"), min_size=3, max_size=9), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_no_cut_of_fixed_decimals_changes_a_value(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], cut: int
) -> None:
    whole = table([f"{step},{cell}" for step, cell in enumerate(cells)])
    content = whole[: max(len("step,loss\n0,0.0000"), len(whole) - cut)].rstrip("\n")
    whole_rows = [row for row in content.split("\n")[1:] if row in whole.split("\n")]
    (run,) = read_all(tmp_path_factory.mktemp("cut") / "log.csv", content + "\n" * (len(whole_rows) < 2))
    assert (
        run.series("train/loss")["value"].tolist()[: len(whole_rows)]
        == [float(row.split(",")[1]) for row in whole_rows][: len(run.table)]
    )


def test_a_header_once_more_is_no_row_and_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "BLOCK_BYTES", 700)
    once_more = table([*ROWS[:200], "step,loss", *ROWS[150:300]])
    run = read_one(tmp_path / "log.csv", once_more)
    assert len(run.table) == 350
    assert {kind: places(run)[kind] for kind in ("repeated_header", "rewind")} == {
        "repeated_header": "line 202",
        "rewind": "step 199 -> 150",
    }
    assert "text_value" not in places(run)
    for other in ("step,accuracy", "step,loss,lr", '"iteration","loss"'):
        with pytest.raises(InputError, match=r"line 202: another header .* split it before this line"):
            read_one(tmp_path / "log.csv", table([*ROWS[:200], other, *ROWS[150:300]]))


def test_a_name_that_stands_twice_is_said_in_every_format(tmp_path: Path) -> None:
    run = read_one(tmp_path / "a.jsonl", '{"step":1,"loss":1}\n{"step":2,"loss":1,"loss":3}\n')
    assert (places(run), run.series("train/loss")["value"].tolist()) == ({"duplicate_key": "line 2"}, [1, 3])
    run = read_one(tmp_path / "b.jsonl", '{"step":1,"a":{"b":1},"a/b":2}\n' * 2)
    assert places(run)["duplicate_key"] == "line 1, 2"
    for content in ('[{"step":1,"loss":1,"loss":9},{"step":2}]', '{"step":[1,2],"loss":[1,2],"loss":[3,4]}'):
        run = read_one(tmp_path / "c.json", content)
        assert places(run)["duplicate_key"] == "the whole file"
    run = read_one(tmp_path / "d.json", '[{"step":1},{"step":2,"a":{"b":1},"a/b":2}]')
    assert places(run)["duplicate_key"] == "row 2"
    twice = pa.Table.from_arrays([pa.array([1, 2])] * 3, ["step", "loss", "loss"])
    pq.write_table(twice, tmp_path / "e.parquet")
    with pytest.raises(InputError, match="'loss' stands twice; rename one"):
        read_logs(tmp_path / "e.parquet")


def test_a_broken_last_line_of_json_with_an_end_was_not_cut_off(tmp_path: Path) -> None:
    rows = '{"step":1,"loss":2}\n{"step":2,"loss":2}\n'
    assert places(read_one(tmp_path / "a.jsonl", rows + '{"step":3,"lo\n')) == {"broken_line": "line 3"}
    assert places(read_one(tmp_path / "b.jsonl", rows + '{"step":3,"lo')) == {"torn_tail": "line 3"}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_first_line_of_any_header_s_length_is_read(tmp_path: Path, suffix: str) -> None:
    names = [f"train/layer_{i:04}/{'mixture_of_experts/' * 11}grad_norm" for i in range(300)]
    if suffix == "csv":
        text = table([",".join(["1", "3.5", *["1.0"] * 300])] * 2, ",".join(["step", "loss", *names]))
    else:
        text = (json.dumps({"step": 1, "loss": 3.5} | dict.fromkeys(names, 1.0)) + "\n") * 2
    assert len(text.split("\n")[0]) > 65536
    assert len(read_one(tmp_path / f"log.{suffix}", text).metrics) == 301


def test_a_first_line_of_no_log_s_length_is_named_for_what_it_is(tmp_path: Path) -> None:
    for content in (b"x" * 5_000_000, b"step," + b"y" * 200_000 + b"\n1,2\n"):
        with pytest.raises(InputError, match=r"in no format known|first line has more than 4,194,304 bytes"):
            read_one(tmp_path / "log.txt", content)


def tarred(data: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("run/log.csv")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (tarred, "is a tar archive; unpack it with `tar xf`"),
        (lambda data: gzip.compress(tarred(data)), "is a tar archive within gzip; unpack it with `tar xf`"),
        (bz2.compress, "is a bzip2 archive; unpack it with `bunzip2`"),
        (
            lambda data: gzip.compress(gzip.compress(data)),
            "is a gzip archive within gzip; unpack it with `gunzip`",
        ),
        (lambda data: lzma.compress(gzip.compress(data)), "is a gzip archive within xz"),
        (lambda data: b"7z\xbc\xaf\x27\x1c" + data, "is a 7z archive; unpack it with `7z x`"),
    ],
)
def test_what_must_be_unpacked_first_is_said(
    tmp_path: Path, pack: Callable[[bytes], bytes], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_one(tmp_path / "log", pack(table(ROWS).encode()))


def test_names_hold_nothing_that_acts_on_a_terminal(tmp_path: Path) -> None:
    run = read_one(tmp_path / "a.csv", "step,\x1b[31mloss\x1b[0m,a\x07b\n1,2,3\n2,3,4\n")
    assert run.metrics == ["train/loss", "a\ufffdb"]
    run = read_one(tmp_path / "b.jsonl", '{"step":1,"lo\\ud800ss":2,"\\u001b]0;x":1}\n')
    assert run.metrics == ["lo\ufffdss", "\ufffd]0;x"]
    with pytest.raises(InputError, match="stands twice"):
        read_one(tmp_path / "c.csv", "step,a\x07b,a\x08b\n1,2,3\n2,3,4\n")
