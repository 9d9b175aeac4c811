"""Quantile balancing: a router bias per expert, set so that the last batch would have been shared out evenly.

No auxiliary loss and no step size: the bias is computed from one batch and replaces the old one for the next.
Source: `marin-community/marin`, `experiments/grug/moe_hero_ep/model.py` at commit 002b940b.
"""

import math

import torch
from torch import Tensor


def quantile_threshold(margins: Tensor, top_k: int) -> Tensor:
    """The bias shift beta `[n_experts]` at which each expert would take top_k / n_experts of the tokens.

    The exact upper k/E quantile of each column of `margins` `[tokens, n_experts]`: its ceil(tokens * k / E)-th
    largest value.
    """
    tokens, n_experts = margins.shape
    rank = max(1, math.ceil(tokens * top_k / n_experts))
    return torch.topk(margins, rank, dim=0, sorted=False).values.amin(0)


def quantile_threshold_histogram(margins: Tensor, top_k: int, bins: int) -> Tensor:
    """`quantile_threshold` as the launched code estimates it: one grid of `bins` over the range of all margins.

    Counts from the top until they reach rank tokens * k / E, then linear inside that bin:
    beta = lower edge + width * (count from the top with this bin - rank) / count in the bin.
    """
    tokens, n_experts = margins.shape
    low, high = margins.min(), margins.max()
    width = ((high - low) / bins).clamp(min=torch.finfo(margins.dtype).tiny)
    index = ((margins - low) / width).long().clamp_(0, bins - 1)
    flat = index + bins * torch.arange(n_experts, device=margins.device)
    counts = torch.bincount(flat.flatten(), minlength=bins * n_experts).view(n_experts, bins)
    from_top = counts.flip(1).cumsum(1).flip(1)
    rank = tokens * top_k / n_experts
    crossing = (from_top >= rank).sum(1, keepdim=True) - 1
    at, inside = from_top.gather(1, crossing).to(margins), counts.gather(1, crossing).clamp(min=1)
    return (low + width * (crossing + (at - rank) / inside)).squeeze(1)


def balanced_bias(beta: Tensor) -> Tensor:
    """Router bias for the next step, -(beta - mean beta): replaces the old one, no step size."""
    return beta.mean() - beta
