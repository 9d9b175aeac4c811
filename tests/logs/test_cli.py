"""`maquette logs`: names and keys of the JSON, and what ends up in the store."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.configuration import InputError
from logs.cli import app
from logs.store import list_runs, read_run

PROJECT = Path(__file__).parents[2]
PUBLISHED = PROJECT / "logs" / "published" / "marin"


def run_json(*arguments: str | Path):
    result = CliRunner().invoke(app, ["logs", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("ladder/small", "ladder/medium", "ablation/code/seed-0"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "facts.json").write_text('{"tokens_per_step": 8}')
        (folder / "config.yaml").write_text("width: 64\n")
        rows = [{"step": step, "tokens": 8 * (step + 1), "train/loss": 3.0 - step / 10} for step in range(5)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path / "runs"


def test_importing_the_command_line_is_light() -> None:
    heavy = "{'pandas', 'pyarrow', 'numpy', 'rich', 'torch'} & set(sys.modules)"
    code = f"import sys, logs.cli; print(sorted({heavy}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ("[]", "['rich']")


def test_list_marks_what_is_here(tmp_path: Path) -> None:
    rows = run_json("list", "--root", tmp_path)
    keys = {
        "name",
        "params_total",
        "params_active",
        "tokens",
        "steps",
        "metrics",
        "source",
        "licence",
        "local",
    }
    assert all(keys <= set(row) for row in rows)
    assert not any(row["local"] for row in rows)
    run_json("ingest", PUBLISHED / "marin_ladder_eval_grid.csv", "--root", tmp_path)
    rows = run_json("list", "--root", tmp_path)
    here = [row["name"] for row in rows if row["local"]]
    assert here == ["marin-d1024", "marin-d1536", "marin-d2048", "marin-d768"]
    assert {row["name"]: row["pull"] for row in rows}["marin-535b"]


def test_one_public_run_is_listed_with_the_source_of_each_fact(tmp_path: Path) -> None:
    (row,) = run_json("list", "marin-535b", "--root", tmp_path)
    assert row["entry"]["facts"]["params_total"] == {
        "value": 535305388032,
        "source": row["entry"]["facts"]["params_total"]["source"],
    }
    result = CliRunner().invoke(app, ["logs", "list", "marin-535b", "--root", str(tmp_path)])
    assert "535,305,388,032" in result.stdout
    assert "hero-fa4sm100-nomask-step146k" in result.stdout
    assert "mixture phase 2" in result.stdout


def test_a_public_run_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    for command in (["show", "marin-535b"], ["export", "marin-535b", "--to", "csv"]):
        with pytest.raises(
            InputError, match=r"marin-535b is a public run that is not here yet.*logs pull marin-535b"
        ):
            invoke(*command, "--root", tmp_path)
    with pytest.raises(InputError, match=r"opt-175b cannot be pulled: .*no table of the curve is public"):
        invoke("pull", "opt-175b", "--root", tmp_path)
    with pytest.raises(InputError, match=r"no public run 'marin-53b'.*did you mean marin-535b"):
        invoke("list", "marin-53b", "--root", tmp_path)


def test_ingest_and_show_print_the_same_summary(tmp_path: Path) -> None:
    ingested = run_json("ingest", PUBLISHED, "--root", tmp_path)["runs"]
    assert [run["name"] for run in ingested] == list_runs(tmp_path)
    shown = run_json("show", "marin-535b", "--root", tmp_path)["runs"]
    assert shown == [run for run in ingested if run["name"] == "marin-535b"]
    (run,) = shown
    keys = {"name", "format", "rows", "segments", "first_step", "last_step", "metrics", "quirks"}
    assert keys <= set(run)
    assert set(run["segments"][0]) >= {"id", "first_step", "last_step"}
    assert set(run["quirks"][0]) == {"kind", "count", "where", "action"}
    assert (run["first_step"], run["last_step"], run["format"]) == (0, 199159, "marin-tables")
    loss = run["metrics"]["eval/paloma_macro/loss"]
    assert loss == {
        "unit": "nats/token",
        "n": 67,
        "first": 11.786223411560059,
        "last": loss["min"],
        "min": loss["min"],
        "max": 11.786223411560059,
        "non_finite": 0,
    }


def test_own_runs_are_stored_by_folder_and_a_stale_one_does_not_survive(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_json("ingest", runs, "--as", "own", "--root", root)
    assert list_runs(root) == ["own/ablation/code/seed-0", "own/ladder/medium", "own/ladder/small"]
    for file in (runs / "ladder/medium").iterdir():
        file.unlink()
    before = (root / "own/ladder/small/log.parquet").read_bytes()
    run_json("ingest", runs, "--as", "own", "--root", root)
    assert list_runs(root) == ["own/ablation/code/seed-0", "own/ladder/small"]
    assert (root / "own/ladder/small/log.parquet").read_bytes() == before
    assert len(run_json("show", "own", "--root", root)["runs"]) == 2


def test_one_run_takes_the_very_name(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_json("ingest", runs / "ladder/small", "--as", "mine", "--root", root)
    run_json("ingest", runs / "ladder/small/metrics.jsonl", "--as", "mine-too", "--root", root)
    run_json("ingest", runs / "ladder/small", "--root", root)
    assert list_runs(root) == ["mine", "mine-too", "small"]


def test_a_source_is_named_as_seen_from_the_working_folder(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = runs / "ladder/small/metrics.jsonl"
    log.rename(tmp_path / "cached")
    log.symlink_to(tmp_path / "cached")
    run_json("ingest", "runs/ladder/small", "--root", "one")
    run_json("ingest", runs / "ladder/small", "--root", "two")
    assert [source.path for source in read_run("small", Path("one")).sources] == [
        "runs/ladder/small/metrics.jsonl"
    ]
    for name in ("log.parquet", "run.json"):
        assert Path("one/small", name).read_bytes() == Path("two/small", name).read_bytes()


def test_show_reads_any_log_without_storing_it(runs: Path, tmp_path: Path) -> None:
    (summary,) = run_json("show", runs / "ladder/small", "--root", tmp_path / "store")["runs"]
    assert summary["metrics"]["train/loss"]["last"] == 2.6
    assert not (tmp_path / "store").exists()


def test_a_faulty_run_leaves_the_store_as_it_was(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_json("ingest", runs, "--as", "own", "--root", root)
    (runs / "ladder/small/facts.json").write_text("{")
    with pytest.raises(InputError, match=r"facts\.json"):
        CliRunner().invoke(
            app, ["logs", "ingest", str(runs), "--as", "own", "--root", str(root)], catch_exceptions=False
        )
    assert len(list_runs(root)) == 3


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_an_export_holds_the_lineage_and_is_read_back(tmp_path: Path, kind: str) -> None:
    run_json("ingest", PUBLISHED, "--root", tmp_path)
    out = tmp_path / f"out.{kind}"
    done = run_json("export", "marin-535b", "--to", kind, "--out", out, "--root", tmp_path)
    run = read_run("marin-535b", tmp_path)
    assert (done["rows"], done["path"]) == (len(run.lineage()), str(out))
    if kind == "parquet":
        assert (
            pd.read_parquet(out)["train/loss"].dropna().tolist() == run.series("train/loss")["value"].tolist()
        )
        return
    run_json("ingest", out, "--as", "again", "--root", tmp_path)
    again = read_run("again", tmp_path)
    for metric in run.metrics:
        pd.testing.assert_frame_equal(
            run.series(metric).drop(columns="segment"), again.series(metric).drop(columns="segment")
        )


def test_an_unknown_kind_of_export_lists_the_known_ones(tmp_path: Path) -> None:
    run_json("ingest", PUBLISHED / "marin_ladder_eval_grid.csv", "--root", tmp_path)
    with pytest.raises(InputError, match="choose one of csv, parquet, jsonl, tensorboard, wandb"):
        CliRunner().invoke(
            app,
            ["logs", "export", "marin-d768", "--to", "xls", "--root", str(tmp_path)],
            catch_exceptions=False,
        )


def test_wrong_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "maquette", "logs", "show", "nothing-of-that-name", "--root", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "nothing-of-that-name" in done.stderr


def test_tables_for_people_name_every_metric_in_full(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["logs", "show", str(PUBLISHED)], catch_exceptions=False)
    assert "eval/paloma_macro_with_drops/loss" in result.stdout
    assert "inherited_history" in result.stdout


def invoke(*arguments: str | Path) -> None:
    CliRunner().invoke(app, ["logs", *map(str, arguments)], catch_exceptions=False)


def test_only_the_very_run_takes_the_name_of_a_public_run(runs: Path, tmp_path: Path) -> None:
    root, log = tmp_path / "store", tmp_path / "marin-535b.csv"
    grid = PUBLISHED / "marin_ladder_eval_grid.csv"
    hero = PUBLISHED / "marin_hero_train.csv"
    log.write_text("step,train/loss\n0,3.5\n1,3.4\n")
    run_json("ingest", hero, "--as", "marin-535b", "--root", root)
    before = (root / "marin-535b/log.parquet").read_bytes()
    for arguments in (
        [log],
        [log, "--as", "marin-535b"],
        [runs, "--as", "marin-535b"],
        [log, "--as", "marin-d768/x"],
    ):
        with pytest.raises(InputError, match=r"is the name of a public run.*--as NAME"):
            invoke("ingest", *arguments, "--root", root)
    with pytest.raises(InputError, match="is the name of a public run"):
        invoke("ingest", grid, "--as", "marin-535b", "--root", root)
    assert (root / "marin-535b/log.parquet").read_bytes() == before
    run_json("ingest", log, "--as", "mine", "--root", root)
    run_json("ingest", hero, "--as", "marin-535b", "--root", root)
    assert list_runs(root) == ["marin-535b", "mine"]


def test_one_run_does_not_take_the_place_of_a_folder_of_runs(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_json("ingest", runs, "--as", "own", "--root", root)
    before = list_runs(root)
    for log in (runs / "ladder/small", runs / "ladder/small/metrics.jsonl"):
        with pytest.raises(InputError, match="own holds other runs"):
            invoke("ingest", log, "--as", "own", "--root", root)
    assert list_runs(root) == before
    run_json("ingest", runs / "ladder/small", "--as", "own/ladder/small", "--root", root)
    assert list_runs(root) == before


def test_where_nothing_can_be_written_is_named(runs: Path, tmp_path: Path) -> None:
    root, file = tmp_path / "store", tmp_path / "file"
    file.write_text("kept")
    run_json("ingest", runs / "ladder/small", "--root", root)
    with pytest.raises(InputError, match="is a folder; give the file"):
        invoke("export", "small", "--to", "csv", "--out", root, "--root", root)
    for out in (file / "small.csv", Path("/proc/small.csv")):
        with pytest.raises(InputError, match="cannot be written"):
            invoke("export", "small", "--to", "csv", "--out", out, "--root", root)
    for unwritable in (file, file / "store", Path("/proc/store")):
        with pytest.raises(InputError, match="cannot be written"):
            invoke("ingest", runs / "ladder/small", "--root", unwritable)
    assert file.read_text() == "kept"


def test_a_damaged_run_does_not_hide_the_others(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_json("ingest", runs, "--as", "own", "--root", root)
    (root / "own/ladder/small/log.parquet").write_bytes(b"PAR1 no more")
    result = CliRunner().invoke(app, ["logs", "list", "--json", "--root", str(root)], catch_exceptions=False)
    own = [row["name"] for row in json.loads(result.stdout) if not row["public"]]
    assert own == ["own/ablation/code/seed-0", "own/ladder/medium"]
    assert "own/ladder/small is not listed" in result.stderr
    assert "ingest the run again" in result.stderr
