"""Steps on matrices of which every rank holds some rows, as FSDP2 shards them (along the first dimension).

Stacks of matrices, such as the experts, are sharded along the stack: each matrix is whole on its rank and needs
nothing of this. Of a plain matrix, element-wise work is done on the rows at hand; norms are summed over the ranks;
and where a whole matrix is needed, the ranks share the matrices out among themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from replicas import ranks
from replicas.optimizers.hyperball import frobenius


def local(tensor: Tensor) -> Tensor:
    """The part of `tensor` on this rank, sharing its memory; a tensor that is not sharded itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of all of `tensors` together, a scalar.

    If they are sharded, each is over all ranks, though not all need be in the same way, and all ranks call.
    """
    norm = get_total_norm([local(tensor) for tensor in tensors])
    if not any(isinstance(tensor, DTensor) for tensor in tensors):
        return norm
    return ranks.summed(norm.square()).sqrt()


@dataclass(frozen=True)
class RowShards:
    """How matrices of one shape are cut.

    Attributes:
        rows: how many rows of each matrix every rank holds; some may hold none.
        rank: this process among them.
        group: the processes.
    """

    rows: tuple[int, ...]
    rank: int
    group: Any

    def norm(self, shards: Tensor) -> Tensor:
        """`[matrices, rows here, columns]` -> the Frobenius norm of each whole matrix, `[matrices, 1, 1]`."""
        squares = frobenius(shards).square_()
        dist.all_reduce(squares, group=self.group)
        return squares.sqrt_()

    def on_whole(self, function: Callable[[Tensor], Tensor], shards: Tensor) -> Tensor:
        """`function` of whole matrices, each computed by one rank, cut as `shards` is.

        Args:
            function: takes and returns `[matrices, rows, columns]`.
            shards: `[matrices, rows here, columns]`; every rank has the same matrices in the same order.
        """
        n, rows_here, columns = shards.shape
        size = len(self.rows)
        share = [n // size + (r < n % size) for r in range(size)]  # matrices that each rank computes
        out = [count * rows_here * columns for count in share]
        back = [share[self.rank] * rows * columns for rows in self.rows]
        received = self._exchange(shards.flatten(), out, back)
        parts = [
            part.view(share[self.rank], rows, columns)
            for part, rows in zip(received.split(back), self.rows, strict=True)
        ]
        matrices = torch.cat(parts, dim=1)
        done = function(matrices) if share[self.rank] else matrices
        returned = torch.cat([part.flatten() for part in done.split(self.rows, dim=1)])
        return self._exchange(returned, back, out).view_as(shards)

    def _exchange(self, sent: Tensor, to: list[int], of: list[int]) -> Tensor:
        """Send `to[r]` elements to each rank r, receive `of[r]` from it."""
        received = sent.new_empty(sum(of))
        dist.all_to_all_single(received, sent, of, to, group=self.group)
        return received


def row_shards(parameter: Tensor) -> RowShards | None:
    """How `parameter`, a matrix, is cut into rows; None if every matrix of it is whole on its rank."""
    if not isinstance(parameter, DTensor) or parameter.ndim != 2:
        return None
    mesh, total = parameter.device_mesh, parameter.shape[0]
    size = mesh.size()
    most = -(-total // size)  # as torch.chunk cuts
    rows = tuple(min(max(total - r * most, 0), most) for r in range(size))
    return RowShards(rows, mesh.get_local_rank(), mesh.get_group())
