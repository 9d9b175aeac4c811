"""The ledger: same, different, unknown and other words are four things."""

import pytest

from analysis.counting_rule import embeddings_are_active, same_rule
from analysis.ledger import ASPECTS, COMPARABLE, NOT_COMPARABLE, gravest_first, ledger
from logs.catalogue import load_catalogue
from logs.schema import RunFacts


def row(make_run, aspect, own, public, **columns):
    logged = columns or {"step": [0, 1], "train/loss": [3.0, 2.0]}
    rows = ledger(make_run("own", logged, RunFacts(**own)), make_run("public", logged, RunFacts(**public)))
    return next(row for row in rows if row["aspect"] == aspect)


def test_two_wordings_of_one_counting_rule_are_the_same():
    published = load_catalogue()["marin-535b"].run_facts.counting_rule
    assert same_rule("that of marin-535b; active without embeddings and unvisited experts", published) is True
    assert same_rule(published.upper().replace(",", " ,"), published) is True


def test_rules_that_treat_embeddings_differently_differ():
    """Nemotron counts the embeddings as active, Marin leaves them out."""
    entries = load_catalogue()
    nemotron = entries["nemotron-3-super-100b"].run_facts.counting_rule
    marin = entries["marin-535b"].run_facts.counting_rule
    assert embeddings_are_active(nemotron) is True
    assert embeddings_are_active(marin) is False
    assert same_rule(marin, nemotron) is False


def test_other_words_are_undecided_and_not_a_difference(make_run):
    found = row(
        make_run,
        "parameter counting rule",
        {"counting_rule": "numel of all shards"},
        {"counting_rule": "by hand"},
    )
    assert found["same"] is None
    assert "worded differently" in found["why"]


@pytest.mark.parametrize(("own", "public"), [("Muon + Adam", "muon, adam"), ("fp32", "FP32")])
def test_case_and_punctuation_are_no_difference(make_run, own, public):
    assert row(make_run, "optimizer", {"optimizer": own}, {"optimizer": public})["same"] is True


def test_an_unknown_is_said_with_its_side_and_never_same(make_run):
    for aspect in ASPECTS:
        bare = row(make_run, aspect.name, {}, {})
        if bare["own"] is None:
            assert bare["same"] is None
            assert "not known for own and public" in bare["why"]
            assert bare["consequence"] != NOT_COMPARABLE
    assert "not known for public;" in row(make_run, "tokenizer", {"tokenizer": "t"}, {})["why"]


def test_a_schedule_nobody_stated_is_read_off_the_log(make_run):
    steps = list(range(100))
    columns = {"step": steps, "train/loss": [3.0] * 100, "lr": [0.1 * (1 - 0.009 * s) for s in steps]}
    assert row(make_run, "schedule shape", {}, {}, **columns)["own"] == "linear"
    level = columns | {"lr": [0.1] * 100}
    assert row(make_run, "schedule shape", {}, {}, **level)["own"] is None, (
        "a plateau may be the start of any shape"
    )


def test_units_and_mixtures_that_differ_are_named(make_run):
    found = row(
        make_run, "data mixture", {"mixture": {"code": 0.3, "books": 0.7}}, {"mixture": {"books": 1.0}}
    )
    assert (found["own"], found["same"]) == ("books 0.7, code 0.3", False)


def test_the_gravest_line_comes_first_and_agreement_last(ladder, marin):
    rows = gravest_first(ledger(ladder[0], marin))
    assert rows[0]["consequence"] == NOT_COMPARABLE
    agree = [row["same"] is True for row in rows]
    assert agree == sorted(agree)
    assert rows[-1]["consequence"] == COMPARABLE
