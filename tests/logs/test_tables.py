"""Tables: CSV, JSON lines, JSON and Parquet, as other programs write them and as nobody should."""

import csv
import io
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import ingest, read_logs
from logs.naming import load_names
from logs.parsing import opened
from logs.readers import find_reader, json_lines, take_sample
from logs.schema import AXES, Run

SHARED = Path(__file__).parents[3] / "shared" / "public"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public logs ({SHARED}) are not here")


def read_one(path: Path, content: bytes | str | None = None) -> Run:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    (run,) = read_logs(path).runs
    return run


def values(run: Run, metric: str = "train/loss") -> list[float]:
    return run.series(metric)["value"].tolist()


def kinds(run: Run) -> dict[str, int]:
    return {quirk.kind: quirk.count for quirk in run.quirks}


@pytest.mark.parametrize(
    ("content", "expected", "quirks"),
    [
        ("\ufeffstep,loss\n0,2.5\n1,2.25\n", [2.5, 2.25], {}),
        ("step,loss\r\n0,2.5\n1,2.25\r\n2,2\n", [2.5, 2.25, 2.0], {}),
        ("step,loss\r0,2.5\r1,2.25\r", [2.5, 2.25], {}),
        ("step;loss\n0;2,5\n1;2,25\n", [2.5, 2.25], {"decimal_comma": 2}),
        ('step,loss\n0,"1,234,567"\n1,"1,234.5"\n', [1234567.0, 1234.5], {"thousands_comma": 2}),
        ("step;loss\n1.000;3,25\n2.000;3,5\n", [3.25, 3.5], {"decimal_comma": 2, "thousands_point": 2}),
        ("step;loss\n0;3,25\n1.000;3,250\n", [3.25, 3.25], {"decimal_comma": 2, "thousands_point": 1}),
        ('step,loss\n"1,000",3.25\n"2,000",3.5\n', [3.25, 3.5], {"thousands_comma": 2}),
        ("step,loss\n0,1.234\n1,2.345\n", [1.234, 2.345], {}),  # three decimals are usual
        ("step;loss;lr\n0;3,25;1.5e-4\n1;3,125;0.5\n", [3.25, 3.125], {"decimal_comma": 2}),
        ("step,loss,note\n0,2.5,a\xe9\n1,2.25,b\n".encode("latin-1"), [2.5, 2.25], {"text_value": 2}),
        ("step,loss\n\n0,2.5\n\n1\n2,2.25\n", [2.5, 2.25], {"broken_line": 1}),
        (b"step,loss\n0,2.5\n1\xac\n2,2.25\n", [2.5, 2.25], {"broken_line": 1}),
        ("step,loss\n0, +2.5\n1,1e400\n2,0x10\n3,1_0\n", [2.5, math.inf], {"text_value": 2, "non_finite": 1}),
    ],
)
def test_csv_as_people_save_it(
    tmp_path: Path, content: str | bytes, expected: list[float], quirks: dict[str, int]
) -> None:
    run = read_one(tmp_path / "log.csv", content)
    assert values(run) == expected
    found = kinds(run)
    assert {kind: found.get(kind) for kind in quirks} == quirks
    assert set(found) - set(quirks) <= {"thinned"}


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path: Path) -> None:
    run = read_one(tmp_path / "log.csv", "\n\nstep,loss\n0,1\n\n1\n2,1\n,5\n")
    assert {quirk.kind: quirk.where for quirk in run.quirks} == {
        "broken_line": "line 6",
        "no_step": "line 8",
    } | {quirk.kind: quirk.where for quirk in run.quirks if quirk.kind == "thinned"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_encoding_is_named_with_the_remedy(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(InputError, match="UTF-16 or UTF-32 text; save it as UTF-8"):
        read_one(tmp_path / "log.csv", "step,loss\n0,1\n".encode(encoding))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_line_of_fifty_megabytes_is_left_out_in_little_memory(tmp_path: Path, kind: str) -> None:
    rows = {
        "csv": ["step,loss", "0,2.5", "{}", "2,2.25"],
        "jsonl": ['{"step":0,"loss":2.5}', "{}", '{"step":2,"loss":2.25}'],
    }
    junk = "9" * (50 * 2**20) if kind == "csv" else '{"step":1,"loss":2,"note":"' + "9" * (50 * 2**20) + '"}'
    path = tmp_path / f"log.{kind}"
    with path.open("w") as stream:
        for row in rows[kind]:
            stream.write((junk if row == "{}" else row) + "\n")
    tracemalloc.start()
    run = read_one(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values(run) == [2.5, 2.25]
    (quirk,) = [quirk for quirk in run.quirks if quirk.kind == "long_line"]
    assert quirk.where == f"line {3 if kind == 'csv' else 2}"
    assert peak < 80 * 2**20


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], dict[str, list[float | None]]]:
    rows = draw(st.integers(1, 30))
    steps = draw(st.lists(st.integers(0, 2**40), min_size=rows, max_size=rows))
    cells = st.none() | st.floats() | st.integers(-(10**6), 10**6)
    columns = {
        name: draw(st.lists(cells, min_size=rows, max_size=rows)) for name in ("loss", "my metric", "é/ü")
    }
    return sorted(steps), columns


def same(found: list[float], expected: list[float | None]) -> bool:
    logged = [float(value) for value in expected if value is not None]
    return list(map(repr, found)) == list(map(repr, logged))


@given(tables(), st.sampled_from(["csv", "jsonl", "parquet", "json"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_table_comes_back_value_for_value_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[list[int], dict[str, list[float | None]]],
    kind: str,
    ascii_only: bool,
) -> None:
    steps, columns = table
    path = tmp_path_factory.mktemp("table") / "log"
    rows = [{"step": step, **{n: c[i] for n, c in columns.items()}} for i, step in enumerate(steps)]
    if kind == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, ["step", *columns])
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue(), newline="")
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows if ascii_only else {"step": steps, **columns}))
    else:
        pq.write_table(_arrow(steps, columns), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "BLOCK_BYTES", 64)
        (run,) = find_reader(take_sample(path)).read(path)
    assert run.table["step"].tolist() == steps
    names = {"loss": "train/loss"}
    for name, column in columns.items():
        metric = names.get(name, name)
        found = run.table[metric].array._pa_array.drop_null().to_pylist() if metric in run.metrics else []
        assert same(found, column)


def _arrow(steps: list[int], columns: dict[str, list[float | None]]) -> Any:
    import pyarrow as pa

    doubles = {
        n: pa.array([None if v is None else float(v) for v in c], pa.float64()) for n, c in columns.items()
    }
    return pa.table({"step": steps, **doubles})


UNIFORM = [{"step": 0, "loss": 2.5, "lr": 1e-3}, {"step": 1, "loss": 2.25, "lr": None}]


@pytest.mark.parametrize(
    "odd",
    [
        '{"step": 2, "lr": 1, "loss": 2}',
        '{"step": 2, "loss": 2, "lr": 1, "more": {"inner": 5}}',
        '{"step": 2, "loss": "NaN", "lr": 1}',
        '{"step": 2, "loss": 2, "lr": true}',
        '{"step": 2, "loss": 2, "lr": "a: b, c}"}',
        '{"step": 2, "loss": 2, "lr": 1',
        '{"step": 2, "loss": 2}{"lr": 1}',
        '{"step": 2, "lo\\u0073s": 2, "lr": 1}',
        '{"step": 2, "loss": [1, 2], "lr": 1}',
        '{"step": 2, "loss": -Infinity, "lr": 1e999}',
    ],
)
def test_the_fast_ways_through_json_lines_agree_with_the_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*map(json.dumps, UNIFORM), odd, json.dumps(UNIFORM[0] | {"step": 3})]) + "\n")
    fast = read_one(path)
    monkeypatch.setattr("logs.parsing.json_lines._uniform_block", lambda *_: None)
    monkeypatch.setattr("logs.parsing.json_lines._whole_block", lambda *_: None)
    slow = read_one(path)
    pd.testing.assert_frame_equal(fast.table, slow.table)
    assert fast.quirks == slow.quirks


@pytest.mark.parametrize("orient", ["records", "columns"])
def test_pandas_writes_json_that_we_read(tmp_path: Path, orient: Any) -> None:
    frame = pd.DataFrame({"step": [0, 10, 20], "train_loss": [3.5, 3.25, None], "note": ["a", "b", "c"]})
    frame.to_json(tmp_path / "log.json", orient=orient)
    run = read_one(tmp_path / "log.json")
    assert values(run) == [3.5, 3.25]
    assert kinds(run)["text_value"] == 3


def test_rows_inside_a_json_object_are_read(tmp_path: Path) -> None:
    run = read_one(
        tmp_path / "a.json", '{"name": "x", "history": [{"step": 0, "eval": {"loss": 2}}, {"step": 1}]}'
    )
    assert run.table["step"].tolist() == [0, 1]
    assert values(run, "eval/validation/loss") == [2.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"step": 0, "loss": 1}', r"line 1, column 24: not JSON: .* \(is the file cut off\?\)"),
        (b'{"step": {"a": [1]}, "loss": 3}\n\n\n{', "line 4, column 1: .* more follows it; split the file"),
        (b'{\n "step": 4, "loss": {"a": [2]}}', "neither a list of rows nor columns"),
        (b'[{"step": ' + b"[" * 100_000, "cannot be read as JSON"),
        (b"PAR1 and no more", "not a whole Parquet file"),
        (b"PK\x03\x04 a zip", "zip archive; unpack it with `unzip`"),
    ],
)
def test_bad_tables_are_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_one(tmp_path / "log", content)
    assert "\n" not in str(error.value)


def test_a_parquet_file_that_swells_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(_arrow([1] * 5000, {"loss": [2.5] * 5000}), tmp_path / "log.parquet")
    monkeypatch.setattr("logs.readers.parquet_table.MOST_CELLS", 9999)
    with pytest.raises(InputError, match="more than fit"):
        read_one(tmp_path / "log.parquet")


def test_a_table_of_ever_new_metrics_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.parsing.tables.MOST_COLUMNS", 50)
    lines = "\n".join(json.dumps({"step": i, f"metric {i}": 1}) for i in range(100))
    with pytest.raises(InputError, match="more than 50 metrics"):
        read_one(tmp_path / "log.jsonl", lines)


@needs_shared
def test_real_lightning_metrics(tmp_path: Path) -> None:
    run = read_one(SHARED / "lightning" / "metrics_version_0.csv")
    theirs = pd.read_csv(SHARED / "lightning" / "metrics_version_0.csv")
    assert [source.reader for source in run.sources] == ["lightning-csv"]
    for column, metric in {"train_loss_step": "train/loss", "val_loss": "eval/validation/loss"}.items():
        logged = theirs[["step", column]].dropna()
        assert run.series(metric)[["step", "value"]].to_numpy().tolist() == logged.to_numpy().tolist()
    assert kinds(run)["epoch_rows"] == 10


def test_a_folder_is_not_left_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.csv").write_text("step,loss\n0,1\n1,1\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "own.csv").write_text("step,loss\n0,2\n1,2\n")
    (tmp_path / "logs" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs" / "loop").symlink_to(tmp_path / "logs")
    (tmp_path / "logs" / "dangling.csv").symlink_to(tmp_path / "gone")
    (tmp_path / "logs" / "cached.csv").symlink_to(
        tmp_path / "elsewhere" / "other.csv"
    )  # as DVC links its cache
    reading = read_logs(tmp_path / "logs")
    assert [run.name for run in reading.runs] == ["cached", "own"]
    ((left, why),) = reading.left_alone
    assert left.endswith("dangling.csv")
    assert "a link to nothing" in why


def test_yaml_that_would_run_code_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "names.yaml"
    path.write_text(f"metrics: !!python/object/apply:os.system ['touch {marker}']\naxes: {{}}\n")
    with pytest.raises(InputError, match=str(path)):
        load_names(path)
    assert not marker.exists()


def test_nothing_is_half_written_when_a_later_file_is_faulty(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("step,loss\n0,1\n1,1\n")
    (tmp_path / "in" / "b.csv").write_text("step,loss,loss\n0,1,1\n")
    with pytest.raises(InputError, match="stands twice"):
        ingest(tmp_path / "in", root=tmp_path / "store")
    assert not (tmp_path / "store").exists()


FRAGMENTS = [
    b"step",
    b"loss",
    b",",
    b";",
    b"\t",
    b"\n",
    b"\r\n",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"0",
    b"1.5",
    b"nan",
    b"\xff",
    b"\x00",
    b"PAR1",
    b":W&B\xe1\xbe",
    b"_step",
    b"epoch",
    b" - x__MIN",
    b"NaN",
    b"null",
    b"e99",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map(b"".join), st.sampled_from([3, 40, 2**20]))
@settings(max_examples=300, deadline=None)
def test_fragments_of_all_formats_are_read_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(content)
    rows, refused = 0, ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "BLOCK_BYTES", block)
        try:
            rows = sum(len(run.table) for run in read_logs(path).runs)
        except InputError as error:
            refused = str(error)
    assert rows or refused.startswith(str(path))
    assert "\n" not in refused


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{i},{rng.normal()!r},{'x' if i % 97 == 5 else i}" for i in range(3000)]
    (tmp_path / "log.csv").write_text("step,loss,mixed\n" + "\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "BLOCK_BYTES", 512)
        stored = []
        for name in ("one", "two"):
            ingest(tmp_path / "log.csv", "run", root=tmp_path / name)
            stored.append((tmp_path / name / "run" / "log.parquet").read_bytes())
    assert stored[0] == stored[1]
    assert json_lines.FALLBACK
    assert set(AXES) <= set(pq.read_schema(tmp_path / "one" / "run" / "log.parquet").names)
