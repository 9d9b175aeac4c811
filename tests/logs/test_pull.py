"""`maquette logs pull` through the real W&B client, against a service on loopback."""

import fcntl
import gzip
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.configuration import InputError
from logs import wandb_client, wandb_fetch
from logs.cli import app
from logs.ingest import read_logs
from logs.pull import AlreadyRunningError, Pulled, pull, pulled_json, read_rows
from logs.readers.marin_tables import COLUMNS
from logs.store import read_run
from logs.wandb_client import Connection, PublicRun, UnreachableError
from logs.wandb_fetch import fetch

from .wandb_service import ServedRun, WandbService

PUBLISHED = Path(__file__).parents[2] / "logs" / "published" / "marin"
PROJECT = ("marin-community", "marin_moe")
RUN = "rav-ladder-d768-v2"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbService]:
    from wandb.sdk import wandb_setup

    service = WandbService()
    monkeypatch.setenv("WANDB_BASE_URL", service.url)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(wandb_setup.singleton().settings, "x_graphql_retry_max", 1)
    yield service
    service.close()


@pytest.fixture
def pulled(service: WandbService, tmp_path: Path) -> Callable[..., Pulled]:
    def again(name: str = "marin-d768", folder: str = ".", follow: bool = False) -> Pulled:
        service.asked.clear()
        place = tmp_path / folder
        return pull(name, place / "runs", place / "pulls", follow, lambda: Connection(waits=(0.0, 0.0)))

    return again


def row(step: int, **more: object) -> dict[str, object]:
    return {"_step": step, "_timestamp": 1.7e9 + step, "train/loss": 3.0 - step / 7e4, **more}


def serve(service: WandbService, steps: int, run: str = RUN, **more: object) -> ServedRun:
    service.runs[*PROJECT, run] = ServedRun([row(step) for step in range(steps)], **more)
    return service.runs[*PROJECT, run]


def losses(run_name: str, root: Path) -> list[tuple[int, float]]:
    series = read_run(run_name, root / "runs").series("train/loss")
    return list(zip(series["step"], series["value"], strict=True))


def truth(steps: int) -> list[tuple[int, float]]:
    return [(step, 3.0 - step / 7e4) for step in range(steps)]


def test_the_seven_forked_runs_come_out_as_the_published_lineage(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_fetch, "PAGE", 50_000)
    keys = {"train_cross_entropy_loss", "grad_norm_total", "learning_rate", "adam_lr", "mfu_pct"}
    at_wandb = {column: key for key, column in reversed(COLUMNS.items()) if "/" in key}
    names = {key: at_wandb.get(COLUMNS[key], "throughput/mfu") for key in keys}
    tables = [pd.read_csv(PUBLISHED / f"marin_hero_train{part}.csv") for part in ("", "_overlap")]
    for run, rows in pd.concat(tables).groupby("wandb_run_segment"):
        logged = rows.drop_duplicates("step").sort_values("step")[["step", *keys]].rename(columns=names)
        served = [
            {"_step": int(cells.pop("step")), **{key: cell for key, cell in cells.items() if cell == cell}}
            for cells in logged.to_dict("records")
        ]
        service.runs[*PROJECT, str(run)] = ServedRun(served, state="crashed")
    run = pulled("marin-535b").run
    assert run is not None
    assert [segment.id for segment in run.segments] == list(run.lineage()["segment"].unique())
    (carried,) = read_logs(PUBLISHED / "marin_hero_train.csv").runs
    for metric in ("train/loss", "grad_norm", "lr", "lr/adam", "mfu"):
        pd.testing.assert_frame_equal(run.series(metric), carried.series(metric))
    lr = run.series("lr")
    ramp = np.minimum(lr["step"] / 3902, 1 - 0.95 * (lr["step"] - 3902) / (390251 - 3902))
    assert lr["value"].to_numpy() == pytest.approx(0.003290470163 * ramp, rel=1e-4, abs=1e-9)
    assert "overlap" in {quirk.kind for quirk in run.quirks}
    again = pulled("marin-535b", follow=True)
    assert {v["name"] for _, v in service.asked} == {"hero-fa4sm100-nomask-step146k"}  # the others had ended
    note = pulled_json("marin-535b", again)["note"]
    assert note.startswith("hero-fa4sm100-nomask-step146k is crashed at step 199,159 of 390,251; if training")
    assert "mfu = the logged throughput/mfu * 0.01" in run.inferred


def test_exports_are_preferred_and_the_live_tail_is_paged(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    run = serve(service, 3_500, state="running")
    run.export(1_000)
    run.export(1_200)
    assert pulled().new_rows == {RUN: 3_500}
    asked = service.operations()
    assert asked.count("export") == 2
    assert asked.count("HistoryPage") == 3
    assert losses("marin-d768", tmp_path) == truth(3_500)


def test_a_second_pull_asks_for_new_rows_only_and_gives_the_same_bytes_as_one(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    run = serve(service, 2_300, state="running")
    run.export(1_000)
    pulled()
    first = (tmp_path / "runs/marin-d768/run.json").read_bytes()
    assert pulled(follow=True).run is None
    assert service.operations() == ["Run", "RunHistoryKeys"]
    assert (tmp_path / "runs/marin-d768/run.json").read_bytes() == first
    run.rows += [row(step) for step in range(2_300, 2_345)]
    assert pulled(follow=True).new_rows == {RUN: 45}
    windows = [(v["minStep"], v["maxStep"]) for name, v in service.asked if name == "HistoryPage"]
    assert windows == [(2_300, 2_345)]
    assert [name for name, _ in service.asked] == ["Run", "RunHistoryKeys", "HistoryPage"]
    run.state = "finished"
    pulled(follow=True)
    pulled(folder="at-once")
    once, often = (tmp_path / place / "runs/marin-d768" for place in ("at-once", "."))
    assert (once / "log.parquet").read_bytes() == (often / "log.parquet").read_bytes()
    assert _without_time(once) == _without_time(often)
    assert losses("marin-d768", tmp_path) == truth(2_345)


def _without_time(folder: Path) -> dict:
    stored = json.loads((folder / "run.json").read_text())
    assert all(source.pop("fetched") for source in stored["sources"])
    return stored


def test_busy_answers_and_cut_connections_are_tried_again(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    serve(service, 2_500)
    service.faults = {"Run": [429], "RunHistoryKeys": ["cut"], "HistoryPage": [None, 503, "cut", "cut"]}
    pulled()
    assert service.operations().count("HistoryPage") == 3 + 3
    assert losses("marin-d768", tmp_path) == truth(2_500)


def test_a_pull_that_was_given_up_goes_on_where_it_stopped(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    serve(service, 4_000)
    service.faults = {"HistoryPage": [None, None, "cut", "cut", "cut"]}
    with pytest.raises(UnreachableError, match=r"v2: rows from step 2,000: .*EOF; given up after 3 tries"):
        pulled()
    assert not (tmp_path / "runs").exists()
    pulled()
    windows = [v["minStep"] for name, v in service.asked if name == "HistoryPage"]
    assert windows == [2_000, 3_000]
    assert losses("marin-d768", tmp_path) == truth(4_000)


def test_a_cut_download_goes_on_at_the_byte_where_it_stopped(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    run = serve(service, 3_000)
    run.export(2_000)
    run.export(3_000)
    service.faults = {"export": [None, "cut", 503]}
    pulled()
    parts = [(v["number"], v["start"]) for name, v in service.asked if name == "export"]
    size = len(run.export_file(1))
    assert parts == [(0, 0), (1, 0), (1, size // 2), (1, size // 2)]
    assert losses("marin-d768", tmp_path) == truth(3_000)
    assert not list(tmp_path.rglob("*.part"))


def test_rows_that_went_into_an_export_between_two_pulls_are_not_lost(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    run = serve(service, 500, state="running")
    run.export(400)
    pulled()
    run.rows += [row(step) for step in range(500, 900)]
    run.export(800)
    pulled(follow=True)
    assert [v["number"] for name, v in service.asked if name == "export"] == [1]
    assert losses("marin-d768", tmp_path) == truth(900)


def test_a_service_behind_its_own_last_step_loses_no_rows(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    run = serve(service, 500, state="running", withheld=100)
    assert pulled().states[RUN].missing == 100
    run.withheld = 0
    assert pulled(follow=True).new_rows == {RUN: 100}
    assert losses("marin-d768", tmp_path) == truth(500)


@pytest.mark.parametrize("fault", ["refused", "empty"])
def test_samples_are_a_last_resort_labelled_as_such_and_replaced_by_the_full_history(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path, fault: str
) -> None:
    run = serve(service, 400)
    if fault == "refused":
        service.refused.add("HistoryPage")
    else:
        run.export_until = 400  # nothing live, and no export either
    service.refused.add("RunParquetHistory")
    assert pulled().states[RUN].sampled
    stored = read_run("marin-d768", tmp_path / "runs")
    (quirk,) = [quirk for quirk in stored.quirks if quirk.kind == "sampled_history"]
    assert (quirk.count, quirk.where) == (len(stored.table), f"{RUN}: 50 of 400 rows")
    service.refused.clear()
    run.export_until = 0
    pulled()
    stored = read_run("marin-d768", tmp_path / "runs")
    assert "sampled_history" not in {quirk.kind for quirk in stored.quirks}
    assert losses("marin-d768", tmp_path) == truth(400)


def test_rows_that_the_service_counts_but_does_not_give_are_a_quirk(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    serve(service, 100, counted=103)
    pulled()
    (quirk,) = read_run("marin-d768", tmp_path / "runs").quirks
    assert (quirk.kind, quirk.count) == ("incomplete_history", 3)


def test_a_key_is_asked_for_only_where_the_service_wants_one(
    service: WandbService, pulled: Callable[..., Pulled], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(service, 10)
    pulled()
    assert {v.get("auth") for _, v in service.asked} == {None}
    service.keys_wanted.add(PROJECT[1])
    with pytest.raises(
        InputError, match=r"without a key \(401\)\. A key is free: .*/authorize.*WANDB_API_KEY"
    ):
        pulled(folder="no-key")
    monkeypatch.setenv("WANDB_API_KEY", "local-" + "0" * 40)
    assert pulled(folder="key").new_rows == {RUN: 10}


def test_what_is_not_there_is_named(service: WandbService, pulled: Callable[..., Pulled]) -> None:
    with pytest.raises(InputError, match=rf"marin-community/marin_moe/{RUN}: no such public run"):
        pulled()
    with pytest.raises(InputError, match="did you mean marin-535b"):
        pulled("marin-535")
    serve(service, 0, state="running")
    with pytest.raises(InputError, match="the service holds no rows of this run yet"):
        pulled()


def test_values_are_those_that_were_logged(service: WandbService, pulled: Callable[..., Pulled]) -> None:
    odd = {"nan": "NaN", "up": "Infinity", "down": "-Infinity", "whole": 7, "off": None, "bare": math.nan}
    others = {"note": "warm", "h": {"_type": "histogram", "bins": [1]}, "flag": True, "list": [1]}
    rows = [
        row(0, **odd, **others, nested={"inner": {"x": 0.1 + 0.2}}),
        {**row(1), "step": 5, "iteration": 8},
    ]
    service.runs[*PROJECT, RUN] = ServedRun(rows)
    run = pulled().run
    assert run is not None
    first = {metric: run.series(metric)["value"].tolist()[0] for metric in run.metrics}
    assert first == pytest.approx(
        {
            "train/loss": 3.0, "nan": math.nan, "up": math.inf, "down": -math.inf, "whole": 7, "bare": math.nan,
            "nested.inner.x": 0.1 + 0.2, "as_logged/step": 5, "iteration": 8,
        },
        nan_ok=True,
    )  # fmt: skip
    assert run.table["step"].tolist() == [0, 1]
    assert run.table["wall_time"].tolist() == [1.7e9, 1.7e9 + 1]
    assert run.table["tokens"].tolist() == [4194304, 2 * 4194304]
    (quirk,) = [quirk for quirk in run.quirks if quirk.kind == "text_value"]
    assert quirk.where == f"{RUN}: keys flag, h, list, note"


def test_a_counter_that_is_not_the_step_is_a_quirk(
    service: WandbService, pulled: Callable[..., Pulled]
) -> None:
    rows = [row(step, global_step=step if step < 7 else step + 100) for step in range(10)]
    service.runs[*PROJECT, RUN] = ServedRun(rows)
    run = pulled().run
    assert run is not None
    (quirk,) = run.quirks
    assert (quirk.kind, quirk.count) == ("step_disagrees", 3)
    assert quirk.where == f"{RUN}: first at _step 7, where global_step is 107"
    assert run.series("global_step")["value"].tolist() == [*range(7), 107, 108, 109]


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**53), 2**53)
served_rows = st.lists(st.dictionaries(st.sampled_from("abcd"), numbers, max_size=4), min_size=1, max_size=8)


@settings(max_examples=40)
@given(rows=served_rows, cut=st.integers(0, 8))
def test_any_rows_come_back_from_the_raw_files(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("raw")
    stepped = [{"_step": step, **cells} for step, cells in enumerate(rows)]
    run = ServedRun(stepped)
    if cut:
        run.export(cut)
        (folder / "exports").mkdir()
        (folder / "exports" / "0000-x.parquet").write_bytes(run.export_file(0))
    wandb_fetch._keep_rows([json.dumps(row) for row in run.live], folder)
    table, others = read_rows(folder)
    assert others == []
    for step, cells in enumerate(rows):
        back = {k: v for k, v in table.slice(step, 1).to_pylist()[0].items() if v is not None}
        assert back == pytest.approx({"_step": step, **cells}, rel=0, abs=0, nan_ok=True)


def test_a_damaged_raw_file_is_named(
    service: WandbService, pulled: Callable[..., Pulled], tmp_path: Path
) -> None:
    run = serve(service, 10, state="running")
    pulled()
    (page,) = tmp_path.rglob("*.jsonl.gz")
    page.write_bytes(gzip.compress(b"no json\n"))
    run.rows.append(row(10))
    with pytest.raises(
        InputError, match=r"rows/0+-0+10\.10\.jsonl\.gz: damaged .*; remove it and pull again"
    ):
        pulled()


def invoke(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["logs", "pull", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_the_command_and_its_exit_codes(
    service: WandbService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wandb_client.Connection.__init__, "__defaults__", ((0.0,),))
    run = serve(service, 30, state="running")
    code, out, _ = invoke("marin-d768", "--json")
    assert code == 0
    shown = json.loads(out)
    assert (shown["name"], shown["new_rows"], shown["run"]["rows"]) == ("marin-d768", 30, 30)
    assert {"id", "state", "new_rows", "last_step", "sampled"} <= set(shown["runs"][0])
    assert (tmp_path / "logs/runs/marin-d768/log.parquet").is_file()
    assert invoke("marin-d768", "--follow")[1].endswith("marin-d768: nothing new\n")
    with (tmp_path / ".maquette/pulls/marin-d768/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for arguments, wanted in ((("--follow",), 0), ((), 1)):
            code, out, err = invoke("marin-d768", *arguments)
            assert (code, out) == (wanted, "")
            assert err == "marin-d768 is being pulled by another process; nothing done\n"
    run.rows.append(row(30))
    (tmp_path / "dvc.yaml").write_text("stages: {carried: {cmd: x, outs: [logs/runs/marin-d768]}}")
    assert "dvc commit --force carried" in invoke("marin-d768")[2]
    run.rows.append(row(31))
    service.faults = {"HistoryPage": ["cut", "cut"]}
    code, out, err = invoke("marin-d768")
    assert (code, out) == (1, "")
    assert "the same command goes on from there" in err


def test_two_pulls_at_once_fetch_every_row_once(service: WandbService, tmp_path: Path) -> None:
    """The lock is held by whoever comes first; the other one does not touch the folder."""
    serve(service, 3_000)
    busy, go_on = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        busy.set()
        go_on.wait(10)

    service.before_answer = hold
    public, folder = PublicRun(*PROJECT, RUN), tmp_path / "pulls" / "marin-d768" / RUN
    first = threading.Thread(target=lambda: pull("marin-d768", tmp_path / "runs", tmp_path / "pulls"))
    first.start()
    assert busy.wait(10)
    with pytest.raises(AlreadyRunningError):
        pull("marin-d768", tmp_path / "runs", tmp_path / "pulls")
    go_on.set()
    first.join()
    assert losses("marin-d768", tmp_path) == truth(3_000)
    assert fetch(Connection(), public, folder) == 0
