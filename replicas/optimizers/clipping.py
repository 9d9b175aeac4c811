"""Gradient clipping by norm, one norm per parameter group."""

import torch
from torch import Tensor

from replicas.optimizers.sharded import local, total_norm


@torch.no_grad()
def clip_by_group_norm(optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    """Scale the gradients of each group of `optimizer` down to `max_norm`, where their joint norm is above it.

    A group whose norm is not finite is left alone, so that the optimizer still finds the parameter at fault. Source:
    `optax.clip_by_global_norm` inside each transform of `AdamHConfig.build`, Marin, levanter optim/adamh.py@7cb2d65f.
    """
    for group in optimizer.param_groups:
        gradients: list[Tensor] = [p.grad for p in group["params"] if p.grad is not None]
        if not gradients:
            continue
        norm = total_norm(gradients)
        scale = torch.where(norm.isfinite(), (max_norm / norm).clamp(max=1), torch.ones_like(norm))
        torch._foreach_mul_([local(gradient) for gradient in gradients], scale)
