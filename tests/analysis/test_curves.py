"""Curves, their axes, and how they are drawn."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.bootstrap import block_interval, block_length, moving_blocks, run_resamples
from analysis.curves import AXES, axis_values, debiased_average, points
from analysis.thinning import break_at_holes, keep_extremes
from experiments.configuration import InputError
from logs.schema import Run, RunFacts, make_table

finite = st.floats(-1e6, 1e6)


def test_axes_of_the_published_run(marin):
    rows = points(marin, "train/loss")
    last = rows.iloc[-1]
    assert last["tokens"] == (last["step"] + 1) * 46_137_344
    fraction = axis_values(marin, rows, "fraction")
    per_parameter = axis_values(marin, rows, "tokens_per_parameter")
    flops = axis_values(marin, rows, "flops")
    assert fraction[-1] == pytest.approx((last["step"] + 1) / 390_251)
    assert per_parameter[-1] / fraction[-1] == pytest.approx(791.0, abs=0.01)
    assert flops[-1] / fraction[-1] == pytest.approx(2.610894161377e24, rel=1e-12)


def test_an_unknown_fact_leaves_the_axis_out_and_not_wrong(make_run):
    run = make_run("bare", {"step": [0, 1, 2], "train/loss": [3.0, 2.0, 1.0]})
    rows = points(run, "train/loss")
    assert axis_values(run, rows, "step").tolist() == [1, 2, 3]
    for axis in set(AXES) - {"step"}:
        assert axis_values(run, rows, axis) is None


def test_tokens_follow_from_tokens_per_step_where_not_logged(make_run):
    facts = RunFacts(tokens_per_step=10)
    run = make_run("bare", {"step": [0, 4], "train/loss": [3.0, 2.0]}, facts)
    assert points(run, "train/loss")["tokens"].tolist() == [10, 50]


def test_the_learning_rate_is_summed_exactly_where_it_is_logged_at_every_step(make_run):
    lr = np.concatenate([np.linspace(0, 1, 20), np.linspace(1, 0.1, 180)])
    run = make_run("dense", {"step": range(200), "train/loss": np.ones(200), "lr": lr})
    summed = axis_values(run, points(run, "train/loss"), "integrated_lr")
    assert np.allclose(summed, np.cumsum(lr))


def test_a_thinned_learning_rate_sums_to_the_same(make_run):
    """Linear pieces whose corner is logged: exact."""
    lr = np.interp(np.arange(2001), [0, 100, 2000], [0, 1, 0.1])
    kept = np.arange(0, 2001, 20)
    run = make_run("thin", {"step": kept, "train/loss": np.ones(len(kept)), "lr": lr[kept]})
    summed = axis_values(run, points(run, "train/loss"), "integrated_lr")
    assert np.allclose(summed, np.cumsum(lr)[kept])


def test_a_learning_rate_that_begins_late_is_not_summed(make_run):
    run = make_run("late", {"step": range(200, 1000), "train/loss": np.ones(800), "lr": np.ones(800)})
    assert axis_values(run, points(run, "train/loss"), "integrated_lr") is None
    bare = make_run("bare", {"step": [0, 1], "train/loss": [3.0, 2.0]})
    assert axis_values(bare, points(bare, "train/loss"), "integrated_lr") is None


def test_bits_per_token_are_turned_into_nats():
    table = make_table(pd.DataFrame({"step": [0, 1], "train/loss": [2.0, 1.0]}), "bits")
    run = Run(name="bits", table=table, units={"train/loss": "bits/token"})
    assert points(run, "train/loss")["value"].tolist() == pytest.approx([2 * np.log(2), np.log(2)])


def test_a_metric_that_is_not_there_is_named_with_those_that_are(make_run):
    run = make_run("bare", {"step": [0, 1], "train/loss": [3.0, float("inf")]})
    assert len(points(run, "train/loss")) == 1
    with pytest.raises(InputError, match=r"does not log `grad_norm`; it logs train/loss"):
        points(run, "grad_norm")


@given(st.lists(finite, min_size=1, max_size=400), st.integers(4, 100))
def test_reduction_keeps_the_extremes_and_the_ends(values, most):
    y = np.array(values)
    kept = keep_extremes(y, most)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(most, 4)
    assert {0, len(y) - 1} <= set(kept.tolist())
    assert y[kept].max() == y.max()
    assert y[kept].min() == y.min()


@given(st.lists(finite, min_size=8, max_size=400), st.integers(8, 60))
def test_no_point_lies_outside_what_is_drawn_around_it(values, most):
    """Between two kept points every dropped one lies within the extremes kept of its stretch."""
    y = np.array(values)
    kept = keep_extremes(y, most)
    stretches = np.linspace(0, len(y), max(1, most // 4) + 1).astype(int)
    for lo, hi in pairwise(stretches) if len(y) > most else []:
        drawn = y[kept[(kept >= lo) & (kept < hi)]]
        assert drawn.min() == y[lo:hi].min()
        assert drawn.max() == y[lo:hi].max()


def test_reduction_keeps_a_spike_of_one_step_in_a_million():
    y = np.random.default_rng(0).normal(2.0, 0.01, 1_000_000)
    y[123_456] = 9.0
    kept = keep_extremes(y, 2_000)
    assert 123_456 in kept
    assert len(kept) <= 2_000


@given(st.lists(finite, min_size=1, max_size=50), st.floats(0.1, 100))
def test_the_average_for_the_eye_is_debiased(values, half_life):
    """It stays between the extremes; on a constant curve it is that constant from the first point on."""
    y, x = np.array(values), np.arange(len(values), dtype=float)
    average = debiased_average(x, y, half_life)
    slack = 1e-9 * (1 + np.abs(y).max())
    assert (average >= y.min() - slack).all()
    assert (average <= y.max() + slack).all()
    assert np.allclose(debiased_average(x, np.full(len(y), 7.0), half_life), 7.0)


def test_the_average_is_the_weighted_mean_it_claims_to_be():
    x, y = np.array([0.0, 1.0, 5.0]), np.array([1.0, 4.0, 2.0])
    weights = np.exp2(-np.abs(x[:, None] - x[None]) / 2.0)
    assert np.allclose(debiased_average(x, y, 2.0), weights @ y / weights.sum(axis=1))


def test_lines_break_in_the_holes_of_the_public_log(marin):
    done = points(marin, "train/loss")["done"].to_numpy("float64")
    breaks = break_at_holes(done)
    holes = [(done[i - 1], done[i]) for i in breaks]
    assert any(lo < 11_000 and hi > 17_000 for lo, hi in holes)
    assert any(lo < 99_000 and hi > 105_000 for lo, hi in holes)
    assert len(break_at_holes(np.arange(1000.0))) == 0


def test_small_samples_are_enumerated_and_large_ones_drawn():
    three, exact = run_resamples(3, 500)
    assert exact
    assert len({tuple(row) for row in three}) == 27
    many, exact = run_resamples(20, 500)
    assert not exact
    assert many.shape == (500, 20)


def test_block_length_follows_the_correlation():
    rng = np.random.default_rng(1)
    white = rng.normal(size=4000)
    assert block_length(white) < 25
    assert block_length(np.convolve(white, np.ones(40) / 40, "valid")) > 60
    assert block_length(np.zeros(100)) <= 25
    assert set(moving_blocks(10, 10, 10, rng).tolist()) == set(range(10))


def test_block_bootstrap_covers_the_mean_of_correlated_noise():
    """AR(1), phi .7, 400 points: an interval that ignored the correlation would cover about 58 % of the time."""
    rng, covered, trials = np.random.default_rng(2), 0, 200
    for trial in range(trials):
        shocks = rng.normal(size=500)
        noise = np.zeros(500)
        for i in range(1, 500):
            noise[i] = 0.7 * noise[i - 1] + shocks[i]
        sample = noise[100:]
        trend = np.full(400, sample.mean())
        lo, hi = block_interval(
            trend,
            sample - sample.mean(),
            lambda y: float(y.mean()),
            block_length(sample),
            resamples=200,
            seed=trial,
        )
        covered += lo <= 0 <= hi
    assert 0.86 <= covered / trials <= 0.99
