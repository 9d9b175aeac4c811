"""Splicing: any history of forks, resumes, gaps and copied rows gives back the one truth it was made from."""

from dataclasses import dataclass, field
from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.schema import Run, Segment, lineage_ranges, make_table, metric_column
from logs.splice import FEWEST_DOWN, Fork, appended, splice


def as_run(rows: list[tuple[str, int, float | None]], metric: str = "train/loss") -> Run:
    """Rows of (segment, step, value) in the order in which they were written."""
    frame = pd.DataFrame({"segment": [r[0] for r in rows], "step": [r[1] for r in rows]})
    frame[metric] = metric_column([r[2] for r in rows])
    return Run("", make_table(frame, run=""), {metric: "nats/token"})


def lineage(run: Run) -> dict[int, float]:
    series = run.series("train/loss")
    assert series["step"].is_monotonic_increasing
    assert series["step"].is_unique
    return dict(zip(series["step"], series["value"], strict=True))


@dataclass
class History:
    rows: list[tuple[str, int, float | None]] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    truth: dict[int, float] = field(default_factory=dict)
    late: int = 0


@st.composite
def forked(draw: st.DrawFn) -> History:
    """Runs that fork from one another, each logging on after its child forked, some copying earlier rows."""
    history = History()
    first = 0
    for number in range(draw(st.integers(1, 5))):
        name = f"run{number}"
        length = draw(st.integers(1, 12))
        logged = [step for step in range(first, first + length) if draw(st.integers(0, 4)) > 0]
        values = {step: 100.0 * number + step for step in logged}
        inherited = {
            step: value for step, value in history.truth.items() if step < first and draw(st.booleans())
        }
        history.late += sum(step >= first for step in history.truth)
        history.truth = {step: value for step, value in history.truth.items() if step < first} | values
        parent = f"run{number - 1}" if number else None
        history.rows += [(name, step, value) for step, value in sorted((inherited | values).items())]
        history.forks.append(Fork(name, first, parent))
        first = draw(st.integers(max(first, 0), first + length))
    return history


@settings(max_examples=60, deadline=None)
@given(forked(), st.randoms())
def test_known_forks_splice_to_the_truth(history: History, random) -> None:
    if not history.rows:
        return
    rows = list(history.rows)
    random.shuffle(rows)  # with known forks the order of the rows means nothing
    run = splice([as_run(rows)], "run", history.forks)
    assert lineage(run) == history.truth
    assert len(run.table) == len(history.rows)


@st.composite
def resumed(draw: st.DrawFn) -> History:
    """One file to which a run was appended again and again, each time from a checkpoint further back."""
    history = History()
    first = 0
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 12))
        history.truth = {step: value for step, value in history.truth.items() if step < first}
        for step in range(first, first + length):
            if step > first and draw(st.integers(0, 4)) == 0:
                continue  # not logged
            history.rows.append(("", step, 100.0 * number + step))
            history.truth[step] = 100.0 * number + step
        first = draw(st.integers(0, max(history.truth)))
    steps = [step for _, step, _ in history.rows]
    down, up = sum(a > b for a, b in pairwise(steps)), sum(a < b for a, b in pairwise(steps))
    assume(down < FEWEST_DOWN or down <= 10 * up)  # else it is a log saved newest first
    return history


@settings(max_examples=60, deadline=None)
@given(resumed())
def test_resumes_in_one_file_splice_to_the_truth(history: History) -> None:
    run = splice([as_run(history.rows)], "run")
    assert lineage(run) == history.truth
    assert len(run.table) == len(history.rows)
    back = sum(after[1] < before[1] for before, after in zip(history.rows, history.rows[1:], strict=False))
    assert sum(quirk.count for quirk in run.quirks if quirk.kind == "rewind") == back
    assert len(run.segments) == back + 1


def test_a_branch_that_was_given_up_owns_nothing() -> None:
    segments = [
        Segment(id="a", first_step=0, last_step=130),
        Segment(id="b", first_step=100, last_step=150, parent="a"),
        Segment(id="c", first_step=120, last_step=200, parent="a"),
    ]
    assert lineage_ranges(segments) == {"a": (0, 120), "c": (120, float("inf"))}


def test_a_child_that_goes_back_past_its_parents_fork_leaves_the_parent_nothing() -> None:
    segments = [
        Segment(id="a", first_step=0, last_step=100),
        Segment(id="b", first_step=80, last_step=90, parent="a"),
        Segment(id="c", first_step=60, last_step=200, parent="b"),
    ]
    ranges = lineage_ranges(segments)
    assert ranges["a"] == (0, 60)
    assert ranges["b"] == (80, 60)  # empty


def test_rows_of_one_step_become_one_and_nothing_is_averaged() -> None:
    frame = pd.DataFrame({"step": [0, 1, 1, 1]})
    frame["train/loss"] = metric_column([3.0, 2.0, None, 2.5])
    frame["eval/code/loss"] = metric_column([None, None, 4.0, None])
    units = {"train/loss": "nats/token", "eval/code/loss": "nats/token"}
    run = splice([Run("", make_table(frame, run=""), units)], "run")
    rows = run.lineage()
    assert rows["step"].tolist() == [0, 1]
    assert rows["train/loss"].tolist() == [3.0, 2.5]
    assert rows["eval/code/loss"].dropna().tolist() == [4.0]
    (quirk,) = run.quirks
    assert (quirk.kind, quirk.count) == ("duplicate_step", 1)
    assert "1 of them differ, by at most 0.5" in quirk.where


@given(resumed())
@settings(max_examples=60, deadline=None)
def test_a_log_saved_newest_first_splices_to_what_was_written(history: History) -> None:
    rows = [("", step, value) for step, value in sorted(history.truth.items())]
    assume(len(rows) > FEWEST_DOWN)
    run = splice([as_run(rows[::-1])], "run")
    assert lineage(run) == history.truth
    assert [segment.first_step for segment in run.segments] == [rows[0][1]]
    assert [q.count for q in run.quirks if q.kind == "reversed"] == [len(rows)]


def test_gaps_thinning_and_non_finite_values_are_counted() -> None:
    steps = [*range(0, 100, 10), *range(150, 300, 10)]
    rows = [("", step, float("nan") if step == 50 else 1.0) for step in steps]
    found = {quirk.kind: quirk for quirk in splice([as_run(rows)], "run").quirks}
    assert set(found) == {"gap", "thinned", "non_finite"}
    assert found["gap"].where == "the longest from step 90 to 150"
    assert found["thinned"].where == "every 10 steps"
    assert (found["non_finite"].count, found["non_finite"].where) == (1, "train/loss, step 50")


def test_a_whole_log_has_no_quirks() -> None:
    assert splice([as_run([("", step, 1.0) for step in range(50)])], "run").quirks == ()


def test_two_files_of_one_run_must_agree_on_units() -> None:
    one = as_run([("", 0, 1.0)])
    other = Run("", one.table, {"train/loss": "bits/byte"})
    with pytest.raises(InputError, match="train/loss is in"):
        splice([one, other], "run")


def test_a_segment_that_the_catalogue_does_not_know_is_an_error() -> None:
    with pytest.raises(InputError, match="stranger"):
        splice([as_run([("stranger", 0, 1.0)])], "run", [Fork("known", 0)])


@settings(max_examples=60, deadline=None)
@given(st.lists(resumed(), min_size=2, max_size=3), st.randoms())
def test_interleaved_writers_are_cut_at_their_own_rewinds(histories: list[History], random) -> None:
    queues = [[(f"rank{i}", step, value) for _, step, value in h.rows] for i, h in enumerate(histories)]
    backs = sum(b[1] < a[1] for queue in queues for a, b in pairwise(queue))
    written = []
    while any(queues):
        written.append(random.choice([queue for queue in queues if queue]).pop(0))
    run = splice([as_run(written)], "run")
    assert sum(quirk.count for quirk in run.quirks if quirk.kind == "rewind") == backs
    assert len(run.segments) == backs + len(histories)
    for i, history in enumerate(histories):
        own = run.table[run.table["segment"].str.split("#").str[0] == f"rank{i}"]
        rows = list(zip(own["step"], own["train/loss"], strict=True))
        assert rows == [(step, value) for _, step, value in history.rows]


@settings(max_examples=60, deadline=None)
@given(resumed(), st.data())
def test_a_log_in_several_files_splices_to_what_one_file_gives(history: History, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(history.rows) - 1)), max_size=3)))
    bounds = [0, *cuts, len(history.rows)]
    files = [history.rows[a:b] for a, b in pairwise(bounds) if a < b]
    run = splice([appended([as_run(rows) for rows in files])], "run")
    assert lineage(run) == history.truth


@given(st.lists(st.integers(1, 50), min_size=3, max_size=60), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_gaps_are_counted_where_steps_are_missing(runs: list[int], stride: int) -> None:
    """Stretches of steps `stride` apart, each followed by a hole of ten strides, in which nothing was logged."""
    steps, start = [], 0
    for length in [200, *runs]:
        steps += range(start, start + length * stride, stride)
        start = steps[-1] + 10 * stride
    found = {quirk.kind: quirk for quirk in splice([as_run([("", s, 1.0) for s in steps])], "run").quirks}
    regular = 0.9 * (len(steps) - 1) <= len(steps) - 1 - len(runs)
    assert (found["gap"].count if "gap" in found else 0) == (len(runs) if regular else 0)
    assert ("thinned" in found) == (regular and stride > 1)
    assert ("uneven_sampling" in found) == (not regular)


def test_quirks_list_the_steps() -> None:
    rows = [("", step, float("inf") if step in (3, 5, 8) else 1.0) for step in range(10)]
    (quirk,) = splice([as_run([*rows[:5], rows[4], *rows[5:]])], "run").quirks[1:]
    assert (quirk.kind, quirk.where) == ("non_finite", "train/loss, steps 3, 5, 8")
