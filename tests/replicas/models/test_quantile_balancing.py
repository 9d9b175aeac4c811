"""Quantile balancing against sorting by hand, the histogram against the exact quantile, and what it is for."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from replicas.models.quantile_balancing import (
    balanced_bias,
    quantile_threshold,
    quantile_threshold_histogram,
)

from . import references


@st.composite
def margin_tables(draw_from: st.DrawFn) -> tuple[Tensor, int]:
    """`[tokens, experts]` margins of very different spread per expert, and a top_k."""
    tokens, experts = draw_from(st.integers(1, 40)), draw_from(st.integers(2, 8))
    generator = torch.Generator().manual_seed(draw_from(st.integers(0, 2**31)))
    spread = 10 ** draw_from(st.floats(-6, 3))
    margins = torch.randn(tokens, experts, dtype=torch.float64, generator=generator)
    margins = margins * spread + torch.randn(experts, dtype=torch.float64, generator=generator)
    return margins, draw_from(st.integers(1, experts - 1))


@given(margin_tables())
def test_exact_quantile_equals_sorting(case: tuple[Tensor, int]) -> None:
    margins, top_k = case
    found = balanced_bias(quantile_threshold(margins, top_k))
    np.testing.assert_allclose(found, references.quantile_bias(margins.numpy(), top_k), rtol=0, atol=1e-10)


@given(margin_tables(), st.sampled_from([2, 100, 10_000]))
def test_histogram_agrees_within_a_bin(case: tuple[Tensor, int], bins: int) -> None:
    """Within a bin of the exact quantile: the value of that rank lies in the bin the count crosses in."""
    margins, top_k = case
    found = quantile_threshold_histogram(margins, top_k, bins)
    bin_width = (margins.max() - margins.min()) / bins
    off = (found - quantile_threshold(margins, top_k)).abs().max()
    assert off <= bin_width * (1 + 1e-6) + 1e-12


@given(margin_tables(), st.integers(2, 50))
def test_histogram_equals_counting_by_hand(case: tuple[Tensor, int], bins: int) -> None:
    margins, top_k = case
    tokens, experts = margins.shape
    low, high = float(margins.min()), float(margins.max())
    width, rank = (high - low) / bins, tokens * top_k / experts
    if width == 0:
        return
    found = quantile_threshold_histogram(margins, top_k, bins)
    for e in range(experts):
        places = [min(bins - 1, int((float(m) - low) / width)) for m in margins[:, e]]
        from_top, edge = 0, bins
        while from_top < rank:
            edge -= 1
            from_top += places.count(edge)
        beta = low + width * (edge + (from_top - rank) / places.count(edge))
        assert math.isclose(found[e], beta, rel_tol=1e-9, abs_tol=1e-9 * (abs(low) + abs(high)))


def test_histogram_of_equal_margins_is_finite() -> None:
    margins = torch.full((6, 3), -1.5)
    assert torch.allclose(quantile_threshold_histogram(margins, 1, 10), torch.tensor(-1.5))


def test_the_biases_have_mean_zero_and_favour_what_was_passed_over() -> None:
    bias = balanced_bias(torch.tensor([1.0, 3.0, -4.0]))
    assert torch.equal(bias, torch.tensor([-1.0, -3.0, 4.0]))


@given(st.integers(0, 2**31), st.booleans())
def test_the_same_batch_is_shared_out_more_evenly(seed: int, exact: bool) -> None:
    """Sixteen experts with very different popularity, top 2, before and after one update."""
    generator = torch.Generator().manual_seed(seed)
    tokens, experts, top_k = 512, 16, 2
    logits = torch.randn(tokens, experts, generator=generator) + 2 * torch.randn(experts, generator=generator)

    def overload(bias: Tensor) -> tuple[float, Tensor]:
        """Load of the busiest expert over the fair share, and the margins."""
        top = torch.topk(logits + bias, top_k + 1)
        load = torch.bincount(top.indices[:, :top_k].flatten(), minlength=experts)
        return float(load.max()) / (tokens * top_k / experts), logits - top.values[:, -1:]

    before, margins = overload(torch.zeros(experts))
    beta = (
        quantile_threshold(margins, top_k) if exact else quantile_threshold_histogram(margins, top_k, 10_000)
    )
    after, _ = overload(balanced_bias(beta))
    assert before > 2
    assert after - 1 < 0.75 * (before - 1)
