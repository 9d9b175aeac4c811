"""What is found under a path and how it is named; what cannot be read is said, never lost in silence."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.configuration import InputError
from logs.cli import app
from logs.ingest import ingest, read_logs
from logs.naming import names_in_force
from logs.schema import Quirk, Run
from logs.store import list_runs, read_run
from logs.tokens import LARGEST

PUBLISHED = Path(__file__).parents[2] / "logs" / "published" / "marin"
TABLE = "step,loss\n0,3.5\n1,3.4\n2,3.3\n"


def put(path: Path, text: str = TABLE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def logs(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(app, ["logs", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def quirk(run: Run, kind: str) -> Quirk:
    (found,) = [quirk for quirk in run.quirks if quirk.kind == kind]
    return found


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that may not be listed, for root and for everyone."""
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if Path(path).name == "refused":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    return Path("refused")


def test_rows_that_were_all_logged_after_a_fork_are_shown_as_such(tmp_path: Path) -> None:
    """The table of the rows that Marin's runs logged behind their forks, without the table of the lineage."""
    text = logs("show", PUBLISHED / "marin_hero_train_overlap.csv").stdout
    assert "45 rows, none in the lineage" in text
    assert "overlap" in text
    text = logs("ingest", PUBLISHED / "marin_hero_train_overlap.csv", "--root", tmp_path).stdout
    assert "45 rows, none in the lineage" in text
    (run,) = json.loads(logs("show", "marin-535b", "--root", tmp_path, "--json").stdout)["runs"]
    assert (run["first_step"], run["last_step"], run["rows"]) == (None, None, 45)
    assert sum(quirk["count"] for quirk in run["quirks"] if quirk["kind"] == "overlap") == 45


def test_a_run_whose_folder_holds_others_goes_among_them(tmp_path: Path) -> None:
    put(tmp_path / "in" / "run.csv")
    put(tmp_path / "in" / "run" / "log.csv")
    put(tmp_path / "in" / "run" / "log" / "x.csv")
    reading = ingest(tmp_path / "in", root=tmp_path / "store")
    assert list_runs(tmp_path / "store") == ["run/log/log", "run/log/x", "run/run"]
    assert [run.name for run in reading.runs if run.inferred] == ["run/run", "run/log/log"]
    assert "other runs lie in the folder run" in read_run("run/run", tmp_path / "store").inferred[0]


def test_of_several_runs_none_is_stored_if_one_cannot_be(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ingest(put(tmp_path / "b.csv"), "b/inside", store)
    put(tmp_path / "in" / "a.csv")
    put(tmp_path / "in" / "b.csv")
    with pytest.raises(InputError, match=r"b holds other runs \(b/inside\)"):
        ingest(tmp_path / "in", root=store)
    assert list_runs(store) == ["b/inside"]
    assert [path.name for path in store.iterdir()] == ["b"]


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, refused: Path) -> None:
    put(tmp_path / "in" / "a.csv")
    put(tmp_path / "in" / refused / "b.csv")
    with pytest.raises(InputError, match="in/refused: cannot be read: Permission denied"):
        read_logs(tmp_path / "in")


def test_a_folder_of_the_store_that_may_not_be_read_does_not_hide_the_others(
    tmp_path: Path, refused: Path
) -> None:
    ingest(put(tmp_path / "a.csv"), root=tmp_path / "store")
    (tmp_path / "store" / refused).mkdir()
    result = logs("list", "--json", "--root", tmp_path / "store")
    assert "a" in [row["name"] for row in json.loads(result.stdout)]
    assert "refused is not listed: Permission denied" in result.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": 1' + "0" * 5000 + "}", "[1]", "null"])
def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path: Path, text: str) -> None:
    for name in ("good", "bad"):
        ingest(put(tmp_path / f"{name}.csv"), root=tmp_path)
    (tmp_path / "bad" / "run.json").write_text(text)
    result = logs("list", "--json", "--root", tmp_path)
    assert [row["name"] for row in json.loads(result.stdout) if not row["public"]] == ["good"]
    assert "bad is not listed" in result.stderr
    with pytest.raises(InputError, match="bad"):
        logs("show", "bad", "--root", tmp_path)


def test_links_to_nothing_and_other_files_are_left_alone_by_name(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.csv")
    put(tmp_path / "in" / "notes.txt", "nothing to see\n")
    (tmp_path / "in" / "gone.csv").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "round.csv").symlink_to(tmp_path / "in" / "round.csv")
    result = logs("ingest", tmp_path / "in", "--root", tmp_path / "store")
    assert list_runs(tmp_path / "store") == ["a"]
    assert "3 files are no training logs and were left alone" in result.stderr
    assert "gone.csv: a link to nothing; fetch what it points to" in result.stderr
    assert "notes.txt: text, but in no format known here\n" in result.stderr


def test_a_log_without_a_metric_is_none(tmp_path: Path) -> None:
    bare = put(tmp_path / "in" / "bare.csv", "step,loss\n0,\n1,\n")
    with pytest.raises(InputError, match=r"bare\.csv: no metric is logged in it, only steps"):
        read_logs(bare)
    put(tmp_path / "in" / "a.csv")
    reading = read_logs(tmp_path / "in")
    assert [run.name for run in reading.runs] == ["a"]
    assert [Path(file).name for file, _ in reading.left_alone] == ["bare.csv"]


@pytest.mark.parametrize("arguments", [["show", ""], ["ingest", ""], ["ingest", "a.csv", "--root", ""]])
def test_an_empty_argument_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("a.csv"))
    with pytest.raises(InputError, match="a path is empty"):
        logs(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_names_that_are_too_long_are_one_clear_error(tmp_path: Path) -> None:
    log = put(tmp_path / "a.csv")
    with pytest.raises(InputError, match="at most 240; choose a shorter name"):
        ingest(log, "x" * 300, tmp_path / "store")
    for command in (["show", "x" * 300], ["export", "x" * 300, "--to", "csv"], ["ingest", "x" * 300]):
        with pytest.raises(InputError, match="cannot be read: File name too long"):
            logs(*command, "--root", tmp_path / "store")


def test_what_would_steer_the_terminal_is_shown_as_text(tmp_path: Path) -> None:
    log = put(tmp_path / "a.csv", "step,\x1b[31mloss\x1b[0m\n0,3.5\n1,3.4\n")
    text = logs("show", log).stdout
    assert "\x1b" not in text
    assert "train/loss" in text  # its colour taken off, the name is known
    log = put(tmp_path / "b.csv", "epoch,\x1b[31mloss\x1b[0m\n0,3.5\n1,3.4\n")
    with pytest.raises(InputError) as caught:
        logs("show", log)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("count", [0, LARGEST + 1, 10**40])
def test_tokens_per_step_is_a_count(tmp_path: Path, count: int) -> None:
    with pytest.raises(InputError, match="must be at least 1 and at most"):
        read_logs(put(tmp_path / "a.csv"), tokens_per_step=count)


def test_tokens_that_no_column_holds_are_left_unknown(tmp_path: Path) -> None:
    (run,) = read_logs(put(tmp_path / "a.csv"), tokens_per_step=2**62).runs
    assert run.table["tokens"].isna().tolist() == [False, True, True]
    assert run.table["tokens"].iloc[0] == 2**62
    found = quirk(run, "tokens_too_large")
    assert (found.count, found.action) == (2, "tokens left unknown; is the step one?")
    assert "in 1 rows of 3" in run.inferred[-1]


def test_negative_and_falling_tokens_are_kept_and_said(tmp_path: Path) -> None:
    log = put(tmp_path / "a.csv", "step,loss,tokens\n0,5,-5\n1,4,100\n2,3,50\n3,2,20\n4,1,\n")
    (run,) = read_logs(log).runs
    assert run.table["tokens"].tolist()[:4] == [-5, 100, 50, 20]
    assert (quirk(run, "negative_tokens").count, quirk(run, "negative_tokens").where) == (1, "step 0")
    falling = quirk(run, "falling_tokens")
    assert (falling.count, falling.where) == (2, "steps 2-3; first from 100 to 50")


def test_a_lone_surrogate_in_json_is_no_crash(tmp_path: Path) -> None:
    rows = '{"step": 1, "lo\\ud800ss": 2, "note": "\\udfff"}\n' * 2
    (run,) = read_logs(put(tmp_path / "a.jsonl", rows)).runs
    assert list(run.metrics) == ["lo\ufffdss"]
    ingest(tmp_path / "a.jsonl", root=tmp_path / "store")
    assert read_run("a", tmp_path / "store").series("lo\ufffdss")["value"].tolist() == [2.0]
    log = put(tmp_path / "b.jsonl", rows.replace("note", "lo\\ufffdss"))
    with pytest.raises(InputError, match="stands twice"):
        read_logs(log)


def test_names_of_one_table_do_not_outlive_it(tmp_path: Path) -> None:
    """A column that names segments by the user's table is one of numbers by the next."""
    log = put(tmp_path / "a.csv", "step,loss,part\n0,3.5,1\n1,3.4,2\n")
    (run,) = read_logs(log).runs
    assert "part" in run.metrics
    own = put(tmp_path / "own.yaml", "axes: {segment: [part]}\n")
    (run,) = read_logs(log, names=own).runs
    assert [segment.id for segment in run.segments] == ["1", "2"]
    with names_in_force():
        (run,) = read_logs(log).runs
    assert "part" in run.metrics
