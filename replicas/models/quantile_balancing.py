"""Quantile balancing: a router bias per expert, set so that the last batch would have been shared out evenly.

No auxiliary loss and no step size: the bias is computed from one batch and replaces the old one for the next.
The batch is the global one: `margins` are those of this rank, over all its micro-batches, and every rank calls.
Source: `marin-community/marin`, `experiments/grug/moe_hero_ep/model.py` at commit 002b940b.
"""

import math

import numpy as np
import torch
from torch import Tensor

from replicas import ranks


def quantile_threshold(margins: Tensor, top_k: int) -> Tensor:
    """The bias shift beta `[n_experts]` at which each expert would take top_k / n_experts of the tokens.

    The exact upper k/E quantile of each column of `margins` `[tokens, n_experts]`: its ceil(tokens * k / E)-th
    largest value. Needs the margins of all ranks at once, one layer at a time; the histogram does not.
    """
    margins = ranks.gathered(margins)
    tokens, n_experts = margins.shape
    rank = max(1, math.ceil(tokens * top_k / n_experts))
    if margins.device.type == "cpu" and margins.dtype in (torch.float32, torch.float64):
        # numpy selects several times faster; its NaNs, too, are the largest, and reach the minimum
        columns = np.array(margins.detach().numpy().T, order="C")
        columns.partition(tokens - rank, axis=1)
        return torch.from_numpy(columns[:, tokens - rank :].min(1))
    return torch.topk(margins, rank, dim=0, sorted=False).values.amin(0)


def quantile_threshold_histogram(margins: Tensor, top_k: int, bins: int) -> Tensor:
    """`quantile_threshold` as the launched code estimates it: one grid of `bins` over the range of all margins.

    Counts from the top until they reach rank tokens * k / E, then linear inside that bin:
    beta = lower edge + width * (count from the top with this bin - rank) / count in the bin. Between ranks only
    the range and the counts travel. A margin that is not finite makes every beta NaN, on every rank.
    """
    n_experts, tokens = margins.shape[1], len(margins) * ranks.world_size()
    extremes = torch.stack((margins.min(), -margins.max()))
    extremes = ranks.least(extremes.where(extremes.isfinite(), -math.inf))
    low, high = extremes[0], -extremes[1]
    width = ((high - low) / bins).clamp(min=torch.finfo(margins.dtype).tiny)
    index = ((margins - low) / width).long().clamp_(0, bins - 1)
    flat = index + bins * torch.arange(n_experts, device=margins.device)
    counts = torch.bincount(flat.flatten(), minlength=bins * n_experts)
    counts = ranks.summed(counts).view(n_experts, bins)
    from_top = counts.flip(1).cumsum(1).flip(1)
    rank = tokens * top_k / n_experts
    crossing = (from_top >= rank).sum(1, keepdim=True) - 1
    at, inside = from_top.gather(1, crossing).to(margins), counts.gather(1, crossing).clamp(min=1)
    return (low + width * (crossing + (at - rank) / inside)).squeeze(1)


def balanced_bias(beta: Tensor) -> Tensor:
    """Router bias for the next step, -(beta - mean beta): replaces the old one, no step size."""
    return beta.mean() - beta
