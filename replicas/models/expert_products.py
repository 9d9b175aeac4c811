"""The routed experts' products: which token rows go to which expert, multiplied, and brought back.

The one place that decides how a mixture of experts is computed. Rows are laid out by expert, in one of two ways:
padded, every expert with the same number of rows, so that each of the three matrices is one batched product; or
sorted, end to end without a gap, so that each matrix is one product per expert.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# What one more expert costs the sorted layout on a CPU, in multiply-adds of padding that cost as much.
_EXPERT_IN_MULTIPLY_ADDS = 150_000
_GROUPED_KERNELS = ("cuda",)  # where `grouped_mm` is worth calling


@dataclass(frozen=True)
class Layout:
    """Which row each assignment of a token to an expert has, and the other way round.

    Attributes:
        row: `[tokens, top_k]` of each assignment; 0 for a dropped one.
        kept: `[tokens, top_k]`, False for a dropped one.
        assignment: `[rows]`, counted as in `selected.flatten()`; 0 for an empty row.
        filled: `[rows]`, False for an empty row.
        rows_per_expert: if padded; None if sorted.
        ends: `[n_experts]` the row after each expert's last one, if sorted.
    """

    row: Tensor
    kept: Tensor
    assignment: Tensor
    filled: Tensor
    rows_per_expert: int | None
    ends: Tensor


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
    layout = lay_out(selected, gate, capacity_factor)
    token = layout.assignment // selected.shape[1]
    rows = _Dispatch.apply(x, token, layout.row, layout.kept)
    hidden = F.silu(_product(rows, gate, layout)) * _product(rows, up, layout)
    weight = combine.to(x.dtype) * layout.kept
    y = _Combine.apply(
        _product(hidden, down, layout), weight, token, layout.row, layout.assignment, layout.filled
    )
    return y, 1 - layout.kept.to(torch.float32).mean()


def lay_out(selected: Tensor, gate: Tensor, capacity_factor: float | None) -> Layout:
    """The layout of `selected` `[tokens, top_k]` that is the faster one for experts like `gate`."""
    (tokens, top_k), n_experts = selected.shape, gate.shape[0]
    expert = selected.flatten()
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=n_experts)
    sorted_expert = expert[order]
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[sorted_expert]
    capacity = None
    if capacity_factor is not None:
        capacity = expert_capacity(tokens, top_k, n_experts, capacity_factor)
        counts = counts.clamp(max=capacity)
    ends = counts.cumsum(0)
    if _sorted_is_faster(gate, counts, capacity):
        rows_per_expert, rows, first = None, len(order), ends - counts
    else:
        rows_per_expert = int(counts.max()) if capacity is None else capacity
        rows = n_experts * rows_per_expert
        first = rows_per_expert * torch.arange(n_experts, device=order.device)
    row = first[sorted_expert] + place
    if capacity is not None:
        row = torch.where(place < capacity, row, rows)  # one row too many takes what is dropped
    assignment = torch.full((rows + 1,), -1, device=order.device).index_copy_(0, row, order)[:rows]
    row = torch.empty_like(row).index_copy_(0, order, row).view_as(selected)
    kept, filled = row < rows, assignment >= 0
    return Layout(row.mul_(kept), kept, assignment.clamp_(min=0), filled, rows_per_expert, ends)


def _sorted_is_faster(gate: Tensor, counts: Tensor, capacity: int | None) -> bool:
    """CUDA has a kernel for sorted bfloat16 rows; a CPU weighs padding against one product call per expert."""
    if gate.device.type == "cuda":
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else gate.dtype
        aligned = all(size % 8 == 0 for size in gate.shape[1:])
        return dtype == torch.bfloat16 and aligned and torch.cuda.get_device_capability(gate.device) >= (8, 0)
    if gate.device.type != "cpu":
        return False
    rows = int(counts.max()) if capacity is None else capacity
    padding = (len(counts) * rows - int(counts.sum())) * gate.shape[1] * gate.shape[2]
    return padding > len(counts) * _EXPERT_IN_MULTIPLY_ADDS


def _product(rows: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    """Each row times the transposed matrix of its expert; `rows` `[rows, in]`, `weight` `[n_experts, out, in]`."""
    if layout.rows_per_expert is not None:
        return (rows.view(len(weight), layout.rows_per_expert, -1) @ weight.mT).flatten(0, 1)
    device = rows.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
    rows, weight = rows.to(dtype), weight.to(dtype)  # autocast knows neither of the two
    if device in _GROUPED_KERNELS:
        return F.grouped_mm(rows, weight.mT, offs=layout.ends.to(torch.int32))
    return _ProductPerExpert.apply(rows, weight, layout.ends)


class _Dispatch(torch.autograd.Function):
    """x[token]: token rows laid out by expert. An empty row holds some token's; nothing is read from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, row: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(row, kept)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        row, kept = ctx.saved_tensors
        return _weighted_sum(grads[0], row, kept.to(grads[0].dtype)), None, None, None


class _Combine(torch.autograd.Function):
    """Each token's weighted sum of its rows; `weight` `[tokens, top_k]` is zero where an assignment was dropped."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, weight: Tensor, token: Tensor, row: Tensor, assignment: Tensor, filled: Tensor
    ) -> Tensor:
        ctx.save_for_backward(out, weight, token, row, assignment, filled)
        return _weighted_sum(out, row, weight.to(out.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy, (out, weight, token, row, assignment, filled) = grads[0], ctx.saved_tensors
        of_row = weight.to(dy.dtype).flatten()[assignment].mul_(filled)
        dout = dy.index_select(0, token).mul_(of_row.unsqueeze(1))
        dweight = out.index_select(0, row.flatten()).view(*row.shape, -1).mul_(dy.unsqueeze(1)).sum(-1)
        return dout, dweight.to(weight.dtype), None, None, None, None


def _weighted_sum(rows: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """sum over k of weight[t, k] * rows[index[t, k]]: `[tokens, width]`."""
    return F.embedding_bag(index, rows, per_sample_weights=weight, mode="sum")


class _ProductPerExpert(torch.autograd.Function):
    """Sorted rows times their experts' transposed matrices, one product each."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.ends = ends.tolist()
        ctx.save_for_backward(rows, weight)
        out = rows.new_zeros(len(rows), weight.shape[1])
        for e, some in enumerate(_groups(ctx.ends)):
            torch.mm(rows[some], weight[e].mT, out=out[some])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rows, weight = ctx.saved_tensors
        drows, dweight = torch.zeros_like(rows), torch.zeros_like(weight)
        for e, some in enumerate(_groups(ctx.ends)):
            torch.mm(grads[0][some], weight[e], out=drows[some])
            torch.mm(grads[0][some].mT, rows[some], out=dweight[e])
        return drows, dweight, None


def _groups(ends: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
