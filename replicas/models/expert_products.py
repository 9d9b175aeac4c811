"""The routed experts' products: which token rows go to which expert, multiplied, and brought back.

The one place that decides how a mixture of experts is computed. Rows are laid out by expert, in one of two ways:
padded, every expert with the same number of rows, so that each of the three matrices is one batched product; or
sorted, end to end without a gap, so that each matrix is one product per expert.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# What one more expert costs the sorted layout on a CPU, in multiply-adds of padding that cost as much.
_EXPERT_IN_MULTIPLY_ADDS = 1_000_000
_GROUPED_KERNELS = ("cuda",)  # where `grouped_mm` is worth calling


@dataclass(frozen=True)
class Layout:
    """Which row each assignment of a token to an expert has, and the other way round.

    Attributes:
        row: `[tokens, top_k]` of each assignment; 0 for a dropped one.
        kept: `[tokens, top_k]`, False for a dropped one.
        token: `[rows]` whose row it is; 0 for an empty row.
        rows_per_expert: if padded; None if sorted.
        ends: `[n_experts]` the row after each expert's last one, if sorted.
    """

    row: Tensor
    kept: Tensor
    token: Tensor
    rows_per_expert: int | None
    ends: Tensor

    @property
    def drop_fraction(self) -> Tensor:
        """Share of the assignments that are dropped, a scalar."""
        return 1 - self.kept.to(torch.float32).mean()

    def of_experts(self, rows: Tensor) -> Iterable[Tensor]:
        """The part of `rows` of each expert in turn, if sorted and none is empty."""
        return rows.split(self.ends.diff(prepend=self.ends.new_zeros(1)).tolist())


def expert_capacity(tokens: int, top_k: int, n_experts: int, capacity_factor: float) -> int:
    """Rows one expert takes: capacity_factor times its fair share of the assignments, rounded up."""
    return max(1, math.ceil(capacity_factor * tokens * top_k / n_experts))


@torch.compiler.disable  # how many rows an expert has depends on the tokens
def routed_experts(
    x: Tensor,
    selected: Tensor,
    combine: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    capacity_factor: float | None = None,
    capacity_group: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Weighted sum over each token's experts of down(silu(gate x) * up x).

    Args:
        x: `[tokens, width]`.
        selected, combine: `[tokens, top_k]` experts and their weights.
        gate, up: `[n_experts, hidden, width]`; down: `[n_experts, width, hidden]`.
        capacity_factor: rows per expert over the fair share; assignments beyond it, in token order, count as
            zero and are not sent elsewhere. None computes every assignment.
        capacity_group: so many tokens, one after the other, fill their experts apart from the rest; None takes
            all tokens together.

    Returns:
        `[tokens, width]`, and the share of assignments dropped (a scalar tensor).

    Raises:
        ValueError: the tokens are no whole number of capacity groups.
    """
    layout = lay_out(selected, len(gate), capacity_factor, capacity_group, like=gate)
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    operands = (tensor.to(dtype) for tensor in (x, combine, gate, up, down))
    return _RoutedExperts.apply(*operands, layout), layout.drop_fraction


def lay_out(
    selected: Tensor,
    n_experts: int,
    capacity_factor: float | None = None,
    capacity_group: int | None = None,
    like: Tensor | None = None,
) -> Layout:
    """Where each assignment of `selected` `[tokens, top_k]` goes; see `routed_experts`.

    Args:
        like: the experts' matrices, for which the faster of the two layouts is taken; None takes the sorted one.
    """
    (tokens, top_k), device = selected.shape, selected.device
    cell, capacity, groups = selected.flatten(), None, 1
    if capacity_factor is not None:
        group = min(capacity_group or tokens, tokens)
        if tokens % group:
            raise ValueError(f"{tokens} tokens are no whole number of capacity groups of {group}")
        capacity, groups = expert_capacity(group, top_k, n_experts, capacity_factor), tokens // group
        if groups > 1:  # each expert's rows are cut into one cell per capacity group
            of_token = torch.arange(tokens, device=device).div_(group, rounding_mode="floor")
            cell = (selected * groups).add_(of_token.unsqueeze(1)).flatten()
    order = _stable_argsort(cell, n_experts * groups)
    counts = torch.bincount(cell, minlength=n_experts * groups)
    sorted_cell = cell.index_select(0, order)
    place = torch.arange(len(order), device=device)
    place.sub_((counts.cumsum(0) - counts).index_select(0, sorted_cell))
    if capacity is not None:
        counts.clamp_(max=capacity)
    # a GPU is not waited for
    most = int(counts.max()) if capacity is None or device.type == "cpu" else capacity
    ends = counts.cumsum(0)
    if like is None or _sorted_is_faster(like, counts, most):
        rows_per_expert, first = None, ends - counts
        rows = int(ends[-1]) if device.type == "cpu" else len(order)
    else:
        rows_per_expert, rows = groups * most, len(counts) * most
        first = most * torch.arange(len(counts), device=device)
    row = first.index_select(0, sorted_cell).add_(place)
    if capacity is not None:
        row.masked_fill_(place >= capacity, rows)  # one row too many takes what is dropped
    token = row.new_zeros(rows + 1).scatter_(0, row, order // top_k)[:rows]
    row = torch.empty_like(row).scatter_(0, order, row).view_as(selected)
    kept = row < rows
    return Layout(row.mul_(kept), kept, token, rows_per_expert, ends[groups - 1 :: groups])


def _stable_argsort(cell: Tensor, n_cells: int) -> Tensor:
    if cell.device.type == "cpu":  # numpy's radix sort of short integers takes a fifth of the time
        short = cell.numpy().astype(np.min_scalar_type(n_cells))
        return torch.from_numpy(np.argsort(short, kind="stable"))
    return torch.argsort(cell, stable=True)


def _sorted_is_faster(gate: Tensor, counts: Tensor, most: int) -> bool:
    """CUDA has a kernel for sorted bfloat16 rows; a CPU weighs padding against one product call per expert.

    Args:
        counts: rows that are filled of each cell, of which every expert has the same number.
        most: rows of a padded cell.
    """
    if gate.device.type == "cuda":
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else gate.dtype
        aligned = all(size % 8 == 0 for size in gate.shape[1:])
        return dtype == torch.bfloat16 and aligned and torch.cuda.get_device_capability(gate.device) >= (8, 0)
    if gate.device.type != "cpu":
        return False
    padding = (len(counts) * most - int(counts.sum())) * gate.shape[1] * gate.shape[2]
    return padding > len(gate) * _EXPERT_IN_MULTIPLY_ADDS


class _RoutedExperts(torch.autograd.Function):
    """y[t] = sum over kept k of w[t, k] * down(silu(gate x[t]) * up x[t]), matrices of expert selected[t, k].

    Written by hand, since at small widths the passes between the products cost as much as these: weights are
    applied to the hidden rows, which are no wider than the outer ones and whose product with the incoming gradient
    is at hand, and both halves of the gradient with respect to the rows are added up inside the second product.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, combine: Tensor, gate: Tensor, up: Tensor, down: Tensor, layout: Layout
    ) -> Tensor:
        rows = x.index_select(0, layout.token)
        weight = (
            combine.new_zeros(len(rows))
            .scatter_add_(0, layout.row.flatten(), (combine * layout.kept).flatten())
            .unsqueeze(1)
        )
        g, u = _product(rows, gate.mT, layout), _product(rows, up.mT, layout)
        sigmoid = torch.sigmoid(g)
        silu = g.mul_(sigmoid)
        hidden = silu * u
        ctx.save_for_backward(rows, weight, sigmoid, silu, u, hidden, gate, up, down)
        ctx.layout = layout
        return _sum_of_rows(_product(hidden * weight, down.mT, layout), layout)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows, weight, sigmoid, silu, u, hidden, gate, up, down), layout = ctx.saved_tensors, ctx.layout
        dout = grads[0].index_select(0, layout.token)
        ddown = _product_of_columns(dout, hidden * weight, layout)
        dhidden = _product(dout, down, layout)
        dweight = torch.mv(hidden * dhidden, hidden.new_ones(hidden.shape[1]))
        dhidden.mul_(weight)
        du = dhidden * silu
        dg = dhidden.mul_(u).mul_(silu.lerp(weight.new_ones(1), sigmoid))  # silu' = silu + s (1 - silu)
        dgate, dup = _product_of_columns(dg, rows, layout), _product_of_columns(du, rows, layout)
        drows = _product(du, up, layout, plus=_product(dg, gate, layout))
        dcombine = dweight.take(layout.row).mul_(layout.kept)
        return _sum_of_rows(drows, layout), dcombine, dgate, dup, ddown, None


def _sum_of_rows(rows: Tensor, layout: Layout) -> Tensor:
    """The rows of each token's kept assignments added up: `[tokens, width]`."""
    return F.embedding_bag(layout.row, rows, per_sample_weights=layout.kept.to(rows.dtype), mode="sum")


def _product(rows: Tensor, matrices: Tensor, layout: Layout, plus: Tensor | None = None) -> Tensor:
    """Each row times the matrix of its expert, added to `plus` in place if given.

    `rows` `[rows, in]`, `matrices` `[n_experts, in, out]` -> `[rows, out]`; where no expert has a row, anything.
    """
    if layout.rows_per_expert is not None:
        stacked = rows.view(len(matrices), layout.rows_per_expert, rows.shape[1])
        if plus is None:
            return torch.bmm(stacked, matrices).flatten(0, 1)
        sums = plus.view(len(matrices), layout.rows_per_expert, plus.shape[1])
        torch.baddbmm(sums, stacked, matrices, out=sums)  # PyTorch counts no FLOPs for `baddbmm_`
        return plus
    if rows.device.type in _GROUPED_KERNELS:
        out = F.grouped_mm(rows, matrices, offs=layout.ends.to(torch.int32))
        return out if plus is None else plus.add_(out)
    out = rows.new_empty(len(rows), matrices.shape[2]) if plus is None else plus
    for some, matrix, result in zip(layout.of_experts(rows), matrices, layout.of_experts(out), strict=True):
        torch.addmm(result, some, matrix, beta=0 if plus is None else 1, out=result)
    return out


def _product_of_columns(left: Tensor, right: Tensor, layout: Layout) -> Tensor:
    """Per expert, the sum over its rows of left^T right: `[rows, a]`, `[rows, b]` -> `[n_experts, a, b]`."""
    n_experts = len(layout.ends)
    if layout.rows_per_expert is not None:
        left, right = (side.view(n_experts, layout.rows_per_expert, side.shape[1]) for side in (left, right))
        return torch.bmm(left.mT, right)
    if left.device.type in _GROUPED_KERNELS:
        return F.grouped_mm(left.mT, right, offs=layout.ends.to(torch.int32))
    out = left.new_empty(n_experts, left.shape[1], right.shape[1])
    for a, b, result in zip(layout.of_experts(left), layout.of_experts(right), out, strict=True):
        torch.mm(a.mT, b, out=result)
    return out
