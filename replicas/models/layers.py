"""Layers that more than one architecture is built from."""

from collections.abc import Iterable
from typing import Any

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
        return sum_of_swiglu(x, [self])


def sum_of_swiglu(x: Tensor, experts: Iterable[Any]) -> Tensor:
    """What several `SwiGLU` of one width add up to: the one expert of their joint width."""
    experts = list(experts)
    gates, ups = [e.gate_proj for e in experts], [e.up_proj for e in experts]
    gate, up = F.linear(x, torch.cat([layer.weight for layer in gates + ups])).chunk(2, -1)
    return F.linear(F.silu(gate) * up, torch.cat([e.down_proj.weight for e in experts], 1))


def linear_side_by_side(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What several layers make of the same `x`, by one product: faster where each of them is thin."""
    together = F.linear(x, torch.cat([layer.weight for layer in layers]))
    return together.split([layer.out_features for layer in layers], -1)


_PART = 64  # queries; at least, and from four such parts on; measured on 128 and 256 tokens


def causal_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, window: int) -> Tensor:
    """softmax(scale * q k^T + mask) v of each head, where a token sees itself and at most `window - 1` before it.

    Args:
        q: `[batch, seq, heads, head_dim]`; k, v: `[batch, seq, kv_heads, head_dim]`; head h reads h // (heads / kv).
        mask: `[batch, 1, seq, seq]`, 0 where a query may see a key, else -infinity: so for all beyond the window.

    Returns:
        `[batch, seq, heads, head_dim]`.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    outputs = [
        F.scaled_dot_product_attention(
            q[:, :, queries],
            k[:, :, keys],
            v[:, :, keys],
            attn_mask=mask[:, :, queries, keys],
            scale=scale,
            enable_gqa=True,
        )
        for queries, keys in attention_parts(q.shape[2], window, q.device.type)
    ]
    return (torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]).transpose(1, 2)


def attention_parts(seq: int, window: int, device: str) -> list[tuple[slice, slice]]:
    """Which queries are computed together, and the keys that any of them may see.

    A CPU's kernel computes what the mask hides as well, so that part of the queries with part of the keys is less
    work; elsewhere, and where a sequence is short, all are one part.
    """
    part = max(_PART, -(-seq // 8)) if device == "cpu" and seq >= 4 * _PART else seq
    ends = [(first, min(first + part, seq)) for first in range(0, seq, part)]
    return [(slice(first, end), slice(max(0, first - window + 1), end)) for first, end in ends]


def draw_cut_normal(p: Tensor, sigma: float, generator: torch.Generator) -> None:
    """Fill `p` in place from sigma * N(0, 1) cut at 3 sigma, by which every published family here draws."""
    nn.init.trunc_normal_(p, std=sigma, a=-3 * sigma, b=3 * sigma, generator=generator)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `2 * cos.shape[-1]` channels of `x` `[batch, seq, heads, head_dim]` in interleaved pairs.

    A pair is a complex number, multiplied by cos + i sin; a pair that does not turn, by one.
    """
    if x.shape[-1] % 2:
        return torch.cat((rope(x[..., :-1].contiguous(), cos, sin), x[..., -1:]), dim=-1)
    wide, still = torch.promote_types(x.dtype, torch.float32), x.shape[-1] // 2 - cos.shape[-1]
    if (
        torch.compiler.is_compiling()
    ):  # inductor has no complex arithmetic; elsewhere that takes a third of the time
        cos, sin = (
            F.pad(part.to(wide), (0, still), value=at_rest)[:, None]
            for part, at_rest in ((cos, 1.0), (sin, 0.0))
        )
        real, imaginary = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
        parts = real * cos - imaginary * sin, imaginary * cos + real * sin
        return torch.stack(parts, -1).flatten(-2).to(x.dtype)
    turn = torch.complex(F.pad(cos.to(wide), (0, still), value=1.0), F.pad(sin.to(wide), (0, still)))
    turned = torch.view_as_complex(x.to(wide).unflatten(-1, (-1, 2))) * turn[:, None, :]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)
