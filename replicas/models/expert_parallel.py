"""Expert parallelism: each rank of a group holds some of the routed experts, and token rows travel to them and back.

Of n_experts experts, rank r of a group of R holds those from r * n_experts / R on, as many as that is. Every rank has
tokens of its own; it routes them, drops what exceeds the experts' capacity, and sends each remaining row to the rank
of its expert (all-to-all). That rank computes what arrived as it would compute tokens of its own, and sends the
results back; the first rank sums them up. So no expert's weights travel, only rows of activations.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from replicas.models.expert_products import lay_out, routed_experts


def share_out(stacks: nn.Module, mesh: DeviceMesh) -> None:
    """Leave each rank of the one-dimensional `mesh` its part of every parameter in `stacks`, `[n_experts, ...]`.

    In place, each then a `DTensor` sharded along its first dimension. Every rank must hold the same values before.
    """
    for module in stacks.modules():
        for name, whole in list(module.named_parameters(recurse=False)):
            part = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(part))


@torch.compiler.disable  # how many rows travel depends on the tokens, and collectives with autograd do not compile
def exchanged_experts(
    x: Tensor,
    selected: Tensor,
    combine: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    group: dist.ProcessGroup,
    capacity_factor: float | None = None,
    capacity_group: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`routed_experts` for the tokens of this rank, over the experts of all ranks of `group`: every rank calls.

    Args:
        x: `[tokens, width]`; each rank may have another number of tokens, but at least one.
        selected, combine: `[tokens, top_k]` experts, of all n_experts, and their weights.
        gate, up: `[n_experts / ranks, hidden, width]`; down: `[n_experts / ranks, width, hidden]`: the experts of
            this rank, or `DTensor`s of which they are the local part.
        capacity_factor, capacity_group: see `routed_experts`; capacity is counted over the tokens of one rank.

    Returns:
        `[tokens, width]`, and the share of this rank's assignments dropped (a scalar tensor). The experts' gradients
        are means over the ranks of `group`, as those of weights which ranks hold in common.
    """
    ranks = dist.get_world_size(group)
    experts = [_MeanGradient.apply(_local(stack), ranks) for stack in (gate, up, down)]
    layout = lay_out(selected, ranks * len(experts[0]), capacity_factor, capacity_group)
    exchange, expert = _arrange(torch.diff(layout.ends, prepend=layout.ends.new_zeros(1)), group)
    # sorted rows are dense: what was dropped left its rows at the end
    arrived = exchange.there(x.index_select(0, layout.token[: sum(exchange.sent)]))
    one = arrived.new_ones(len(arrived), 1)
    done = exchange.back(routed_experts(arrived, expert.unsqueeze(1), one, *experts)[0])
    weight = combine.to(done.dtype) * layout.kept
    return F.embedding_bag(layout.row, done, per_sample_weights=weight, mode="sum"), layout.drop_fraction


@dataclass(frozen=True)
class _Exchange:
    """How many rows go to each rank of `group`, and how many come from each."""

    sent: list[int]
    received: list[int]
    group: dist.ProcessGroup

    def there(self, rows: Tensor) -> Tensor:
        """`[sum(sent), width]`, in the order of the ranks -> what they sent here, `[sum(received), width]`."""
        arrived = rows.new_empty(sum(self.received), rows.shape[1])
        return all_to_all_single(arrived, rows, self.received, self.sent, self.group)

    def back(self, rows: Tensor) -> Tensor:
        """The other way round."""
        arrived = rows.new_empty(sum(self.sent), rows.shape[1])
        return all_to_all_single(arrived, rows, self.sent, self.received, self.group)


def _arrange(counts: Tensor, group: dist.ProcessGroup) -> tuple[_Exchange, Tensor]:
    """Agree on an exchange of rows sorted by expert.

    Args:
        counts: `[n_experts]` rows that this rank has for each.

    Returns:
        The exchange, and for each row that arrives its expert, counted among those of this rank, `[rows]`.
    """
    ranks = dist.get_world_size(group)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    arriving = arriving.view(ranks, -1)  # by the rank that sends, and the expert here
    # the one place where the device is waited for
    sent, received = torch.stack((counts.view(ranks, -1).sum(1), arriving.sum(1))).tolist()
    expert = torch.arange(arriving.shape[1], device=counts.device).repeat(ranks)
    return _Exchange(sent, received, group), expert.repeat_interleave(arriving.flatten())


def _local(stack: Tensor) -> Tensor:
    return stack.to_local() if isinstance(stack, DTensor) else stack


class _MeanGradient(torch.autograd.Function):
    """The same tensor; its gradient, to which the losses of `ranks` ranks contributed, divided by their number."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] / ctx.ranks, None
