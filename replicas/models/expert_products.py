"""The routed experts' products: which token rows go to which expert, multiplied, and brought back.

The one place that decides how a mixture of experts is computed on this device. Rows are gathered into one
`[n_experts, capacity, width]` block, so that each of the three matrices is one batched product.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _Gather(torch.autograd.Function):
    """rows[index], where the caller knows the reverse index, so that backward gathers too and never scatters."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, reverse: Tensor) -> Tensor:
        """`rows` `[n, width]`, `index` `[m]` into them; `reverse` `[n, fan]` into `[m]`; m means "none"."""
        ctx.save_for_backward(reverse)
        return _rows_or_zero(rows, index)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (reverse,) = ctx.saved_tensors
        grad = _rows_or_zero(grads[0], reverse.flatten())
        return grad.view(*reverse.shape, -1).sum(1) if reverse.shape[1] > 1 else grad, None, None


def _rows_or_zero(rows: Tensor, index: Tensor) -> Tensor:
    return F.pad(rows, (0, 0, 0, 1)).index_select(0, index)


def expert_capacity(tokens: int, top_k: int, n_experts: int, capacity_factor: float) -> int:
    """Rows one expert takes: capacity_factor times its fair share of the assignments, rounded up."""
    return max(1, math.ceil(capacity_factor * tokens * top_k / n_experts))


def routed_experts(
    x: Tensor,
    selected: Tensor,
    combine: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    capacity_factor: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Weighted sum over each token's experts of down(silu(gate x) * up x).

    Args:
        x: `[tokens, width]`.
        selected, combine: `[tokens, top_k]` experts and their weights.
        gate, up: `[n_experts, hidden, width]`; down: `[n_experts, width, hidden]`.
        capacity_factor: rows per expert over the fair share; assignments beyond it, in token order, count as
            zero and are not sent elsewhere. None computes every assignment.

    Returns:
        `[tokens, width]`, and the share of assignments dropped (a scalar tensor).
    """
    tokens, top_k = selected.shape
    n_experts, assignments = gate.shape[0], selected.numel()
    expert = selected.flatten()
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=n_experts)
    first = counts.cumsum(0) - counts
    place = torch.empty_like(order)  # of each assignment in its expert's queue
    place[order] = torch.arange(assignments, device=x.device) - first[expert[order]]
    if capacity_factor is None:
        capacity = int(counts.max())
    else:
        capacity = expert_capacity(tokens, top_k, n_experts, capacity_factor)
    slots = n_experts * capacity
    kept = place < capacity
    slot = torch.where(kept, expert * capacity + place, slots)
    token_of_slot = torch.full((slots + 1,), assignments, dtype=torch.long, device=x.device)
    token_of_slot[slot] = torch.arange(assignments, device=x.device)
    assignment_of_slot = token_of_slot[:slots]
    token_of_slot = torch.where(assignment_of_slot < assignments, assignment_of_slot // top_k, tokens)

    rows = _Gather.apply(x, token_of_slot, slot.view(tokens, top_k)).view(n_experts, capacity, -1)
    hidden = F.silu(rows @ gate.mT) * (rows @ up.mT)
    out = (hidden @ down.mT).flatten(0, 1)
    back = _Gather.apply(out, slot, assignment_of_slot.unsqueeze(1)).view(tokens, top_k, -1)
    y = torch.einsum("tkd,tk->td", back, combine)
    return y, 1 - kept.to(torch.float32).mean()
