"""Layers that more than one architecture is built from."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replicas.models.kernels import rms_norm, short_convolution


class RMSNorm(nn.Module):
    """x / rms(x) * gain, over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class GatedNorm(nn.Module):
    """x * sigmoid(silu(x @ down) @ up): a low-rank gate on every channel, after each RMSNorm."""

    def __init__(self, d_model: int, rank: int) -> None:
        super().__init__()
        self.down_proj = nn.Linear(d_model, rank, bias=False)
        self.up_proj = nn.Linear(rank, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up_proj(F.silu(self.down_proj(x))))


class SConv(nn.Module):
    """Depthwise causal convolution, starting as the identity; taps never reach into another document."""

    def __init__(self, kernel: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(kernel, channels))

    def forward(self, x: Tensor, same_document: tuple[Tensor, ...]) -> Tensor:
        """`x` `[batch, seq, channels]` -> the same shape: sum over lags of weight[lag] * x[t - lag]."""
        return short_convolution(x, self.weight, same_document)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)): a dense feed-forward expert that every token visits."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, width, bias=False)
        self.up_proj = nn.Linear(d_model, width, bias=False)
        self.down_proj = nn.Linear(width, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `2 * cos.shape[-1]` channels of `x` `[batch, seq, heads, head_dim]` in interleaved pairs."""
    rotary = 2 * cos.shape[-1]
    even, odd = x[..., :rotary:2], x[..., 1:rotary:2]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((turned, x[..., rotary:]), dim=-1)


def exclude_self(y: Tensor, v: Tensor) -> Tensor:
    """XSA: remove from each head's output its component along the token's own value.

    `y` `[batch, seq, heads, head_dim]`, `v` `[batch, seq, kv_heads, head_dim]`; head h owns value h // (heads / kv).
    """
    grouped = y.unflatten(2, (v.shape[2], -1))
    v = v.unsqueeze(3)
    along = (grouped * v).sum(-1, keepdim=True) / (v.square().sum(-1, keepdim=True) + 1e-6)
    return (grouped - along * v).flatten(2, 3)
