"""Names of metrics: the table, and a study's own table before it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.configuration import InputError
from logs.cli import app
from logs.ingest import read_logs
from logs.naming import Names, canonical_names, load_names, names_in_force

OWN = """axes:
  step: [my_counter]
metrics:
  eval/code/loss: [loss_code]
  train/loss: [ce]
  my/objective: [loss]
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(
        "my_counter,ce,loss,loss_code,other\n0,3.5,4.5,2.5,1.0\n1,3.4,4.4,2.4,1.1\n"
    )
    return tmp_path


def test_names_of_the_study_come_first(study: Path) -> None:
    with pytest.raises(InputError, match="no column counts steps"):
        read_logs(study / "log.csv")
    (study / "metric_names.yaml").write_text(OWN)
    (run,) = read_logs(study / "log.csv").runs
    assert run.series("train/loss")["value"].tolist() == [3.5, 3.4]
    assert run.series("my/objective")["value"].tolist() == [
        4.5,
        4.4,
    ]  # `loss` no longer stands for train/loss
    assert run.series("eval/code/loss")["value"].tolist() == [2.5, 2.4]
    assert run.units["eval/code/loss"] == "nats/token"
    assert run.units["my/objective"] == "unknown"
    assert run.series("other")["value"].tolist() == [1.0, 1.1]  # nothing is dropped
    assert any("metric_names.yaml of the study" in text for text in run.inferred)
    assert canonical_names(["ce"]) == {"ce": "ce"}  # in force only while logs are read


@pytest.mark.parametrize("file", ["log.csv", "log.jsonl"])
def test_names_given_on_the_command_line(study: Path, file: str) -> None:
    (study / "own.yaml").write_text(OWN)
    (study / "log.jsonl").write_text('{"my_counter": 0, "ce": 3.5}\n{"my_counter": 1, "ce": 3.4}\n')
    result = CliRunner().invoke(
        app, ["logs", "ingest", file, "--as", "own/run", "--names", "own.yaml", "--json"]
    )
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)["runs"]
    assert run["metrics"]["train/loss"]["last"] == 3.4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric:\n  train/loss: [ce]\n", "`metric` is not a known key; did you mean `metrics`"),
        ("axes:\n  steps: [n]\n", "steps is no axis"),
        ("metrics:\n  step: [n]\n", "is an axis and stands under `axes`"),
        ("metrics:\n  train/loss: ce\n", "train/loss"),
        ("metrics:\n  a: [x]\n  b: [X]\n", "`X` stands for both a and b"),
        ("metrics: !!python/object/apply:os.system [echo]\n", "own.yaml"),
        (None, "no such file"),
    ],
)
def test_a_faulty_table_is_one_clear_error(study: Path, text: str | None, message: str) -> None:
    if text is not None:
        (study / "own.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_logs(study / "log.csv", names=study / "own.yaml")


NAMES = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.sampled_from("uvwxyz"), unique=True, max_size=3), max_size=4
)


@given(own=NAMES, other=NAMES)
def test_a_name_stands_for_one_thing_in_two_tables_as_one(
    own: dict[str, list[str]], other: dict[str, list[str]]
) -> None:
    def once(table: dict[str, list[str]]) -> Names:
        owner = {name: key for key, names in reversed(table.items()) for name in names}
        return Names(metrics={key: [n for n in names if owner[n] == key] for key, names in table.items()})

    mine, theirs = once(own), once(other)
    both = mine.over(theirs)
    stands_for = {name: key for key, names in both.metrics.items() for name in names}
    for key, names in theirs.metrics.items():
        for name in names:
            assert stands_for[name] == next((k for k, n in mine.metrics.items() if name in n), key)
    for key, names in mine.metrics.items():
        assert both.metrics[key][: len(names)] == names


def test_the_built_in_table_is_what_holds_without_a_table_of_the_study(study: Path) -> None:
    with names_in_force() as own:
        assert own is None
        assert canonical_names(["lm loss"]) == {"lm loss": "train/loss"}
    assert load_names().axes["step"][0] == "step"
