"""Which stage starts when, over any graph of stages and any order of endings."""

from hypothesis import given
from hypothesis import strategies as st

from experiments.pipeline import stale_stages
from experiments.stages import Stage, next_stage


@st.composite
def studies(draw: st.DrawFn) -> list[Stage]:
    """Stages in an order that suits their needs, as DVC gives them."""
    stages: list[Stage] = []
    for number in range(draw(st.integers(1, 8))):
        needs = frozenset(stage.name for stage in stages if draw(st.booleans()))
        stages.append(Stage(f"stage-{number}", needs, draw(st.booleans())))
    return stages


@given(studies(), st.integers(1, 4), st.data())
def test_every_stage_runs_once_after_its_needs_and_only_parallel_ones_together(
    stages: list[Stage], jobs: int, data: st.DataObject
) -> None:
    waiting, running, done = list(stages), list[Stage](), list[str]()
    while waiting or running:
        while stage := next_stage(waiting, running, done, jobs):
            assert stage.needs <= set(done)
            waiting.remove(stage)
            running.append(stage)
        assert running, "nothing runs though stages wait"
        assert len(running) <= jobs
        assert len(running) == 1 or all(stage.parallel for stage in running)
        ended = data.draw(st.sampled_from(running))
        running.remove(ended)
        done.append(ended.name)
    assert sorted(done) == sorted(stage.name for stage in stages)


def test_parallel_stages_start_in_the_order_given_so_the_longest_can_come_first() -> None:
    ladder = [Stage(name, parallel=True) for name in ("large", "medium", "small")]
    assert next_stage(ladder, [], [], jobs=2) == ladder[0]
    assert next_stage(ladder[1:], ladder[:1], [], jobs=2) == ladder[1]
    assert next_stage(ladder[2:], ladder[:2], [], jobs=2) is None


def test_a_stage_for_itself_waits_until_the_parallel_ones_are_through() -> None:
    alone, beside = Stage("ingest"), Stage("train", parallel=True)
    assert next_stage([alone], [beside], [], jobs=4) is None
    assert next_stage([alone, Stage("other", parallel=True)], [beside], [], jobs=4) == Stage(
        "other", parallel=True
    )


@given(studies(), st.data())
def test_stale_is_what_changed_and_all_that_comes_after_it(stages: list[Stage], data: st.DataObject) -> None:
    changed = data.draw(st.sets(st.sampled_from([stage.name for stage in stages])))
    stale = stale_stages(stages, changed)
    names = {stage.name for stage in stale}
    assert changed <= names
    for stage in stages:
        assert (stage.name in names) == (stage.name in changed or bool(stage.needs & names))
    assert all(stage.needs <= names for stage in stale)
    assert [stage.name for stage in stale] == [stage.name for stage in stages if stage.name in names]
