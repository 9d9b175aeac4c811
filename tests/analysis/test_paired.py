"""Statistics of paired differences against scipy, textbook formulas and simulated studies with a known answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.paired import (
    Noise,
    bootstrap_interval,
    detectable,
    holm,
    noise_interval,
    p_value,
    residual_noise,
    seeds_needed,
    t_interval,
)


def cells(table):
    """Variant, seed and level of every run of a table `[variants, seeds]`; NaN marks a run that is not there."""
    variant, seed = np.nonzero(np.isfinite(table))
    return variant, seed, table[variant, seed][:, None]


def test_two_variants_give_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(2, 0.1, 6), rng.normal(2.05, 0.1, 6)
    sd, dof = residual_noise(*cells(np.stack([a, b])))
    expected = stats.ttest_rel(b, a)
    mean = float((b - a).mean())
    assert dof == 5
    assert sd[0] == pytest.approx((b - a).std(ddof=1))
    assert p_value(mean, sd[0], 6, dof) == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert t_interval(mean, sd[0], 6, dof) == pytest.approx((interval.low, interval.high))


def test_a_balanced_table_gives_the_textbook_residual_mean_square():
    """Sum of (y - row mean - column mean + mean)^2 over (variants - 1)(seeds - 1)."""
    table = np.random.default_rng(1).normal(size=(4, 3)) + np.array([[0.0], [1], [2], [5]]) + [0, 10, -3]
    residual = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    sd, dof = residual_noise(*cells(table))
    assert dof == 6
    assert sd[0] == pytest.approx(np.sqrt(2 * (residual**2).sum() / 6))


def test_a_seed_that_only_one_variant_has_tells_nothing_about_the_noise():
    table = np.random.default_rng(2).normal(size=(3, 4))
    with_extra = np.full((3, 5), np.nan)
    with_extra[:, :4], with_extra[0, 4] = table, 99.0
    whole, extended = residual_noise(*cells(table)), residual_noise(*cells(with_extra))
    assert extended[1] == whole[1]
    assert extended[0] == pytest.approx(whole[0])


def test_one_seed_leaves_no_degree_of_freedom():
    sd, dof = residual_noise(*cells(np.array([[1.0], [2.0]])))
    assert dof == 0
    assert np.isnan(sd[0])
    assert noise_interval(Noise(None, 0)) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_its_definition_rejects(p):
    """Step down: reject the smallest p while it is below level / (tests left)."""
    adjusted = holm(p)
    for level in (0.01, 0.05, 0.3):
        rejected, left = set(), len(p)
        for i in np.argsort(p, kind="stable"):
            if p[i] * left > level:
                break
            rejected.add(int(i))
            left -= 1
        assert {i for i, value in enumerate(adjusted) if value <= level} == rejected


def test_the_bootstrap_of_few_pairs_is_exact_and_of_many_agrees_with_scipy():
    d = np.array([1.0, 2.0, 4.0])
    stretched = d.mean() + (d - d.mean()) * np.sqrt(3 / 2)
    means = [np.mean([x, y, z]) for x in stretched for y in stretched for z in stretched]
    assert bootstrap_interval(d) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    d = np.random.default_rng(3).normal(0.3, 1, 40)
    peer = stats.bootstrap((d,), np.mean, method="percentile", n_resamples=20_000, rng=0).confidence_interval
    assert bootstrap_interval(d) == pytest.approx((peer.low, peer.high), abs=0.03)
    assert bootstrap_interval(np.array([1.0])) is None


def test_power_agrees_with_the_noncentral_t_distribution():
    for dof, level in ((8, 0.05), (30, 0.01), (60, 0.05)):
        limit = stats.t.ppf(1 - level / 2, dof)
        shift = detectable(dof, level)
        assert stats.nct.sf(limit, dof, shift) == pytest.approx(0.8, abs=2e-3)
    assert seeds_needed(0.5, 1.0, 1, 0.05) == 34  # G*Power and Cohen 1988, table 2.3: paired t, d = .5


def test_studies_find_the_detectable_difference_in_four_of_five():
    """Also with the two degrees of freedom of two seeds and two variants, where scipy's distribution gives NaN."""
    rng, level = np.random.default_rng(4), 0.05 / 12
    shifted, noise = rng.normal(size=100_000) + detectable(2, level), np.sqrt(rng.chisquare(2, 100_000) / 2)
    assert np.mean(np.abs(shifted / noise) > stats.t.ppf(1 - level / 2, 2)) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_intervals_hold_the_truth_as_often_as_they_say(seeds):
    """Three variants that share a baseline, with effects of seeds ten times the noise: 95 % of 2,000 intervals."""
    rng = np.random.default_rng(seeds)
    truth, hits, studies = np.array([0.0, 0.3, -1.0, 0.0]), 0, 2_000
    for _ in range(studies):
        table = truth[:, None] + 10 * rng.normal(size=seeds) + rng.normal(size=(4, seeds))
        sd, dof = residual_noise(*cells(table))
        low, high = t_interval(float((table[1] - table[0]).mean()), float(sd[0]), seeds, dof)
        hits += low <= truth[1] - truth[0] <= high
    assert hits / studies == pytest.approx(0.95, abs=0.015)


def test_more_noise_or_a_smaller_difference_needs_more_seeds():
    needed = [seeds_needed(d, 1.0, 2, 0.05) for d in (4.0, 2.0, 1.0, 0.5)]
    assert needed == sorted(needed)
    assert seeds_needed(1.0, 1.0, 2, 0.01) > seeds_needed(1.0, 1.0, 2, 0.05)
    assert seeds_needed(0.01, 1.0, 2, 0.05) is None
    assert seeds_needed(0.0, 1.0, 2, 0.05) is None
