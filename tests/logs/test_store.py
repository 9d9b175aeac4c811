"""The store: what goes in comes out, the same run gives the same bytes, a failure leaves nothing behind."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs import atomic_folder
from logs.atomic_folder import folder_replaced_whole
from logs.schema import (
    Quirk,
    Run,
    RunFacts,
    Schedule,
    Segment,
    Source,
    is_logged,
    make_table,
    metric_column,
)
from logs.store import list_runs, read_run, write_run, write_runs

PROJECT = Path(__file__).parents[2]
cells = st.none() | st.floats(allow_nan=True, allow_infinity=True)


def a_run(name: str = "own/small", values: list[float | None] | None = None) -> Run:
    values = [3.5, None, float("nan"), float("inf"), -float("inf"), -0.0] if values is None else values
    frame = pd.DataFrame({"step": range(len(values))})
    frame["tokens"] = pd.array([8 * (i + 1) if i % 2 else None for i in range(len(values))], "Int64")
    frame["wall_time"] = pd.array([1.7e9 + i / 3 for i in range(len(values))], "Float64")
    frame["train/loss"] = metric_column(values)
    return Run(
        name,
        make_table(frame, run=name, segment="first"),
        {"train/loss": "nats/token"},
        facts=RunFacts(
            params_active=70_000,
            mixture={"code": 0.25, "docs": 0.75},
            schedule=Schedule(
                shape="linear", peak_lr=0.01, warmup_steps=5, total_steps=500, final_fraction=0.05
            ),
        ),
        segments=(Segment(id="first", first_step=0, last_step=max(len(values) - 1, 0)),),
        quirks=(Quirk(kind="non_finite", count=3, where="train/loss", action="kept as logged"),),
        sources=(Source(path="metrics.jsonl", sha256="0" * 64, reader="maquette-run", reader_version="1"),),
        inferred=("tokens = (step + 1) * 8",),
    )


def same(left: Run, right: Run) -> None:
    pd.testing.assert_frame_equal(left.table, right.table)
    for name in ("name", "units", "facts", "segments", "quirks", "sources", "inferred"):
        assert getattr(left, name) == getattr(right, name), name


def test_what_was_not_logged_and_what_was_nan_stay_different(tmp_path: Path) -> None:
    run = a_run()
    write_run(run, tmp_path)
    back = read_run("own/small", tmp_path)
    same(run, back)
    loss = back.table["train/loss"]
    assert is_logged(loss).tolist() == [True, False, True, True, True, True]
    values = back.series("train/loss")["value"].tolist()
    assert values[0] == 3.5
    assert math.isnan(values[1])
    assert values[2:4] == [math.inf, -math.inf]
    parquet = pq.read_table(tmp_path / "own" / "small" / "log.parquet").column("train/loss")
    assert parquet.null_count == 1


@settings(max_examples=60, deadline=None)
@given(values=st.lists(cells, min_size=1, max_size=30))
def test_any_values_come_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, values: list) -> None:
    root = tmp_path_factory.mktemp("store")
    write_run(a_run(values=values), root)
    back = read_run("own/small", root).table["train/loss"].array._pa_array.to_pylist()
    assert [None if v is None else v.hex() for v in back] == [None if v is None else v.hex() for v in values]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_run(a_run(), tmp_path / folder)
    for name in ("log.parquet", "run.json"):
        one, two = ((tmp_path / folder / "own/small" / name).read_bytes() for folder in ("one", "two"))
        assert one == two


def test_a_group_is_replaced_whole(tmp_path: Path) -> None:
    write_runs([a_run("own/small"), a_run("own/gone")], tmp_path, below="own")
    write_run(a_run("other"), tmp_path)
    write_runs([a_run("own/small"), a_run("own/new/deep")], tmp_path, below="own")
    assert list_runs(tmp_path) == ["other", "own/new/deep", "own/small"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "own"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    write_run(a_run(), tmp_path)
    before = (tmp_path / "own/small/run.json").read_bytes()

    def interrupted() -> None:
        with folder_replaced_whole(tmp_path / "own") as beside:
            (beside / "half").write_text("half-written")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "own/small/run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_failure_in_the_last_moment_brings_back_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(a_run(), tmp_path)
    rename = os.rename

    def fails_once(source: Path, target: Path) -> None:
        if Path(source).suffix == ".part":
            monkeypatch.setattr(os, "rename", rename)
            raise OSError("no space left")
        rename(source, target)

    monkeypatch.setattr(atomic_folder, "_exchange", lambda *_: False)  # as on a network file system
    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(InputError, match="no space left"):
        write_run(a_run(values=[1.0]), tmp_path)
    same(read_run("own/small", tmp_path), a_run())
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["small"]


KILLED = """
import os, signal, sys
from pathlib import Path
from logs import atomic_folder
from logs.store import list_runs, read_run, write_run
from tests.logs.test_store import a_run

def write_and_die(root, rows, at):
    def hook(event, arguments):
        nonlocal at
        if str(root) in str(arguments) or event.startswith(("fcntl", "ctypes")):
            at -= 1
            if at == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    write_run(a_run(values=[1.0] * rows), root)
    os._exit(0)

def sweep(root):
    write_run(a_run(values=[1.0]), root)
    rows, at, replaced, status = 1, 0, 0, 1
    while status != 0:
        at += 1
        if (child := os.fork()) == 0:
            write_and_die(root, 3 - rows, at)
        status = os.waitpid(child, 0)[1]
        run = read_run("own/small", root)
        assert run.segments[0].last_step == len(run.table) - 1
        replaced += len(run.table) == 3 - rows
        rows = len(run.table)
    write_run(a_run(values=[1.0]), root)
    print(at > 20, replaced > 1, sorted(path.name for path in root.rglob("*")))

sweep(Path(sys.argv[1]) / "exchange")
atomic_folder._exchange = lambda *_: False
sweep(Path(sys.argv[1]) / "renames")
"""


def test_a_kill_at_any_moment_leaves_the_old_run_or_the_new_one(tmp_path: Path) -> None:
    """The writer is killed before its first step on the file system, then before its second, and so on: where
    folders can be exchanged, and where they cannot."""
    arguments = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True ['log.parquet', 'own', 'run.json', 'small']\n" * 2


def test_what_a_killed_process_left_is_cleared_but_not_what_a_living_one_writes(tmp_path: Path) -> None:
    with atomic_folder.folder_beside(tmp_path, "small") as living:
        (living / "half").write_text("half-written")
        (tmp_path / ".small.killed00.part").mkdir()
        (tmp_path / ".small.killed00.part" / "half").write_text("half-written")
        write_run(a_run(), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [living.name, "own"]
        assert (living / "half").read_text() == "half-written"
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_two_processes_that_store_at_once_leave_one_whole_run(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom logs.store import write_run\n"
        "from tests.logs.test_store import a_run\n"
        "for _ in range(8): write_run(a_run(values=[1.0] * int(sys.argv[2])), Path(sys.argv[1]))"
    )
    write_run(a_run(values=[1.0]), tmp_path)
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), count], cwd=PROJECT) for count in "12"
    ]
    while any(writer.poll() is None for writer in writers):
        time.sleep(0.01)
        run = read_run("own/small", tmp_path)
        assert run.segments[0].last_step == len(run.table) - 1  # log.parquet and run.json are of one writing
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(read_run("own/small", tmp_path).table) in (1, 2)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["log.parquet", "own", "run.json", "small"]


@pytest.mark.parametrize("name", ["../out", "/etc/run", "a//b", "", ".hidden", "a/../b", "a b"])
def test_a_name_cannot_lead_out_of_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot name a run"):
        write_run(a_run(name), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_run_inside_a_run(tmp_path: Path) -> None:
    write_run(a_run("own"), tmp_path)
    with pytest.raises(InputError, match="inside the run own"):
        write_run(a_run("own/small"), tmp_path)
    with pytest.raises(InputError, match="inside the run x"):
        write_runs([a_run("x"), a_run("x/y")], tmp_path, below="x")
    with pytest.raises(InputError, match="two runs would be stored as x/y"):
        write_runs([a_run("x/y"), a_run("x/y")], tmp_path, below="x")


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="maquette logs ingest"):
        read_run("own/small", tmp_path)
    write_run(a_run(), tmp_path)
    with pytest.raises(InputError, match="did you mean own/small"):
        read_run("own/smal", tmp_path)


@pytest.mark.parametrize("axis", ["step", "tokens", "wall_time"])
def test_a_table_whose_axis_is_no_number_is_damaged(tmp_path: Path, axis: str) -> None:
    log = write_run(a_run(), tmp_path) / "log.parquet"
    table = pq.read_table(log)
    place = table.column_names.index(axis)
    pq.write_table(table.set_column(place, axis, pa.array(["x"] * len(table))), log)
    with pytest.raises(InputError, match=rf"damaged \({axis} is string.*ingest the run again"):
        read_run("own/small", tmp_path)


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    folder = write_run(a_run(), tmp_path)
    (folder / "log.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match="ingest the run again"):
        read_run("own/small", tmp_path)
    (folder / "run.json").write_text('{"name": ')
    with pytest.raises(InputError, match="damaged"):
        read_run("own/small", tmp_path)
