"""The Hyperball step: matrices move on the sphere of their initial Frobenius norm."""

import torch
from torch import Tensor


def hyperball_step(weights: Tensor, directions: Tensor, lr: float) -> Tensor:
    """Each matrix after a step of relative length `lr` along its direction, back on its own sphere.

    W' = W - lr * R * U / |U|_F with R = |W|_F, then W_new = W' * R / |W'|_F. The scale of U is irrelevant.

    Args:
        weights: `[..., rows, columns]`; every leading index is one matrix with its own radius.
        directions: U, the shape of `weights`.
        lr: step length over the radius.

    Returns:
        New weights, the same shape. A zero direction leaves its matrix where it is; a zero matrix stays zero.

    Source: Marin 535B-A23B, grugmuon_hero.py and adamh.py (floor of |U|_F: 1e-10).
    """
    radius = torch.linalg.vector_norm(weights, dim=(-2, -1), keepdim=True)
    length = torch.linalg.vector_norm(directions, dim=(-2, -1), keepdim=True).clamp_(min=1e-10)
    moved = torch.addcmul(weights, directions, radius / length, value=-lr)
    norm = torch.linalg.vector_norm(moved, dim=(-2, -1), keepdim=True).clamp_(min=1e-10)
    return moved.mul_(radius / norm)
