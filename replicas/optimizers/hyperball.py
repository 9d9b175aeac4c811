"""The Hyperball step: matrices move on the sphere of their initial Frobenius norm."""

from collections.abc import Callable

import torch
from torch import Tensor

Norm = Callable[[Tensor], Tensor]


def frobenius(matrices: Tensor) -> Tensor:
    """`[..., rows, columns]` -> the Frobenius norm of each matrix, `[..., 1, 1]`."""
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)


def hyperball_step(weights: Tensor, directions: Tensor, lr: float, norm: Norm = frobenius) -> Tensor:
    """Each matrix after a step of relative length `lr` along its direction, back on its own sphere.

    W' = W - lr * R * U / |U|_F with R = |W|_F, then W_new = W' * R / |W'|_F. The scale of U is irrelevant.

    Args:
        weights: `[..., rows, columns]`; every leading index is one matrix with its own radius.
        directions: U, the shape of `weights`.
        lr: step length over the radius.
        norm: of whole matrices, where this process holds only some of their rows.

    Returns:
        New weights, the same shape. A zero direction leaves its matrix where it is; a zero matrix stays zero.

    Source: Marin 535B-A23B, grugmuon_hero.py and adamh.py (floor of |U|_F: 1e-10).
    """
    radius = norm(weights)
    length = norm(directions).clamp_(min=1e-10)
    moved = torch.addcmul(weights, directions, radius / length, value=-lr)
    return moved.mul_(radius / norm(moved).clamp_(min=1e-10))
