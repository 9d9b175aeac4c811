"""Collectives over all processes of a run; with one process each gives back what it was given.

Every rank has to call them in the same order, with tensors of the same shape.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Processes that train together, 1 outside of a distributed run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process among them, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def barrier() -> None:
    """Wait until every rank is here."""
    greatest_on_host(0)


def summed(tensor: Tensor) -> Tensor:
    """Sum over the ranks."""
    return _reduced(tensor, dist.ReduceOp.SUM)


def least(tensor: Tensor) -> Tensor:
    """Element-wise minimum over the ranks."""
    return _reduced(tensor, dist.ReduceOp.MIN)


def _reduced(tensor: Tensor, operation: Any) -> Tensor:
    if world_size() > 1:
        tensor = tensor.clone()
        dist.all_reduce(tensor, operation)
    return tensor


def averaged(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each of `tensors` as the mean over the ranks, in one all-reduce of float32."""
    if world_size() == 1:
        return list(tensors)
    flat = summed(torch.cat([t.detach().float().flatten() for t in tensors])) / world_size()
    parts = flat.split([t.numel() for t in tensors])
    return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]


def gathered(rows: Tensor) -> Tensor:
    """`[n, ...]` of each rank, the same n on all of them -> `[ranks * n, ...]`, in the order of the ranks."""
    if world_size() == 1:
        return rows
    everyone = rows.new_empty((world_size() * rows.shape[0], *rows.shape[1:]))
    dist.all_gather_single(everyone, rows.contiguous())
    return everyone


def first_said(what: Callable[[], str | None]) -> str | None:
    """What the lowest rank with anything to say says. Slow: for the explanation of a failure."""
    if world_size() == 1:
        return what()
    said: list[str | None] = [None] * world_size()
    dist.all_gather_object(said, what())
    return next((text for text in said if text is not None), None)


def greatest_on_host(value: int) -> int:
    """The greatest `value` of all ranks, agreed between the hosts: no device is waited for."""
    if world_size() == 1:
        return value
    everyone = torch.tensor(value)
    dist.all_reduce(everyone, dist.ReduceOp.MAX, group=_host_group())
    return int(everyone)


def _host_group() -> Any:
    return None if dist.get_backend() == "gloo" else _gloo_beside()


@cache
def _gloo_beside() -> Any:
    return dist.new_group(backend="gloo")
