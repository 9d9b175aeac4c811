"""Tokens and compute to the same loss, with intervals; the irreducible term; runs that differ in their seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.compare import compare
from analysis.irreducible import fit_irreducible
from analysis.ledger import ledger
from analysis.level_shift import crossing, level_shift, progress_shift
from analysis.shape import Reference, seed_interval
from logs.schema import RunFacts

SAME = {"data": "d", "data_version": "1", "tokenizer": "t", "z_loss_in_loss": False}


def run(make_run, name, loss, **facts):
    known = (
        {"steps_planned": len(loss), "tokens_per_step": 1000, "train_flops_per_token": 10.0} | SAME | facts
    )
    return make_run(name, {"step": range(len(loss)), "train/loss": loss}, RunFacts(**known))


def power(steps, pace=1.0):
    return 2 + 3 * ((np.arange(steps) + 1.0) * pace) ** -0.5


@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=30), st.floats(0.02, 0.98))
def test_on_a_falling_curve_a_crossing_is_linear_interpolation(drops, share):
    y = 200.0 - np.cumsum([0.0, *drops])
    x = np.arange(len(y), dtype=float)
    level = y[0] - share * (y[0] - y[-1])
    assert crossing(x, y, level).at == pytest.approx(np.interp(-level, -y, x), abs=1e-6)


def test_a_lucky_dip_is_no_crossing():
    y = power(1000)
    y[100] = y[-1]
    level = power(1000)[600]
    assert crossing(np.arange(1000.0), y, level).at == pytest.approx(600, abs=3)


def test_what_begins_below_or_never_comes_down_has_no_crossing():
    y = power(100)
    assert crossing(np.arange(100.0), y, 9.0) is None
    assert crossing(np.arange(100.0), y, 1.0) is None
    assert crossing(np.array([5.0]), np.array([3.0]), 3.0) is None


def test_the_interval_of_the_shift_covers_the_known_one(make_run):
    """Own learns half as fast per token: 2.0; noise of .02 nats on both, as in small runs."""
    rng, covered, trials = np.random.default_rng(3), 0, 12
    for _ in range(trials):
        public = run(make_run, "public", power(2000) + rng.normal(0, 0.02, 2000))
        own = run(make_run, "own", power(2000, 0.5) + rng.normal(0, 0.02, 2000))
        shift, compute, _ = level_shift(own, public, ledger(own, public))
        assert shift["interval_from"] == "block bootstrap"
        covered += shift["interval"][0] <= 2.0 <= shift["interval"][1]
        assert compute["ratio"] == pytest.approx(1 / shift["ratio"])
    assert covered >= 9


@pytest.mark.parametrize(
    ("loss", "facts", "words"),
    [
        (power(400) + 9, {}, "begins at"),
        (power(400) - 2, {}, "does not come down"),
        (power(400), {"tokens_per_step": None}, "--tokens-per-step"),
    ],
)
def test_why_there_is_no_shift_is_said(make_run, loss, facts, words):
    own, public = run(make_run, "own", loss, **facts), run(make_run, "public", power(400))
    shift, compute, reasons = level_shift(own, public, ledger(own, public))
    assert shift is None
    assert compute is None
    assert words in reasons[0]


def test_progress_is_read_in_the_normal_form(make_run):
    """Own is the public curve scaled, and lagging to 1.25 times the fraction."""
    fraction = (np.arange(1000) + 1) / 1000
    public = run(make_run, "public", 2 - fraction)
    own = run(make_run, "own", 3 * (2 - fraction / 1.25))
    found = progress_shift(own, public, "train/loss", "fraction", Reference(0.79, 0.8))
    assert [round(row["own"], 2) for row in found] == [0.2, 0.4, 0.6]
    scale = (2 - 0.795) / (2 - 0.795 / 1.25)
    for row in found:
        assert row["public"] == pytest.approx(2 - scale * (2 - row["own"] / 1.25), abs=2e-3)
        assert row["ratio"] == pytest.approx(row["own"] / row["public"])


def test_the_irreducible_term_is_recovered_with_an_interval_or_said_unknown(make_run):
    rng = np.random.default_rng(0)
    steps = np.arange(2000) + 1.0
    clear = make_run(
        "clear", {"step": range(2000), "train/loss": 2 + 20 * steps**-0.8 + rng.normal(0, 1e-3, 2000)}
    )
    found = fit_irreducible(clear, "train/loss")
    assert found.identified
    assert found.value == pytest.approx(2, abs=0.01)
    assert found.interval[0] <= found.value <= found.interval[1]
    vague = make_run(
        "vague", {"step": range(200), "train/loss": 5 - 0.001 * steps[:200] + rng.normal(0, 0.2, 200)}
    )
    assert not fit_irreducible(vague, "train/loss").identified
    assert (
        fit_irreducible(make_run("flat", {"step": range(99), "train/loss": [3.0] * 99}), "train/loss") is None
    )


def test_seeds_of_one_run_give_the_interval(make_run):
    """Student's interval of (1, 2, 3): 2 +- 4.3027 / sqrt(3) (any table of t, 2 degrees of freedom)."""
    mean, spread, (lo, hi) = seed_interval([1.0, 2.0, 3.0])
    assert (mean, spread) == (2.0, 1.0)
    assert hi - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    rng = np.random.default_rng(1)
    own = [
        run(make_run, f"own/seed-{seed}", power(400) ** 1.2 + rng.normal(0, 0.01, 400), seed=seed)
        for seed in range(3)
    ]
    other = run(make_run, "own/other-batch", power(400), seed=0, batch_sequences=7)
    (together,) = compare([*own, other], run(make_run, "public", power(400)))["seeds"]
    assert together["seeds"] == [0, 1, 2]
    assert together["interval_from"] == "seeds"
    assert together["interval"][0] <= together["shape_distance"] <= together["interval"][1]
    assert lo < mean
