"""The small layers against loops in float64, in both precisions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from replicas.models.kernels import exclude_self
from replicas.models.layers import GatedNorm, RMSNorm, SConv, SwiGLU, causal_attention, rope
from replicas.models.marin_moe import MarinMoEConfig, positions

from . import references

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3], [0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3]])


@pytest.fixture(params=TOLERANCE, ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_equal(found: Tensor, expected: np.ndarray) -> None:
    off = np.abs(found.detach().double().numpy() - expected).max() / np.abs(expected).max()
    assert off < TOLERANCE[found.dtype]


def fill(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Random parameters in `module`; returns them."""
    module.to(torch.float64)
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=i + 1))
    weights = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    module.to(dtype)
    return weights


def test_rms_norm(dtype: torch.dtype) -> None:
    module, x = RMSNorm(6, 0.1), draw(5, 6)
    weights = fill(module, dtype)
    expected = np.stack([references.rms_norm(row, weights["weight"], 0.1) for row in x.numpy()])
    assert_equal(module(x.to(dtype)), expected)


def test_gated_norm(dtype: torch.dtype) -> None:
    module, x = GatedNorm(6, 3), draw(5, 6)
    weights = fill(module, dtype)
    rows = [
        references.gated_norm(row, weights["down_proj.weight"], weights["up_proj.weight"])
        for row in x.numpy()
    ]
    assert_equal(module(x.to(dtype)), np.stack(rows))


def test_swiglu(dtype: torch.dtype) -> None:
    module, x = SwiGLU(6, 4), draw(5, 6)
    weights = fill(module, dtype)
    matrices = [weights[f"{name}_proj.weight"] for name in ("gate", "up", "down")]
    assert_equal(module(x.to(dtype)), np.stack([references.swiglu(row, *matrices) for row in x.numpy()]))


@pytest.mark.parametrize("kernel", [1, 4, 15], ids=["a tap", "as published", "longer than the sequence"])
def test_short_convolution_stays_inside_its_document(
    small: MarinMoEConfig, dtype: torch.dtype, kernel: int
) -> None:
    module, x = SConv(kernel, 3), draw(2, SEGMENTS.shape[1], 3)
    weights = fill(module, dtype)
    where = positions(small.model_copy(update={"sconv_kernel": kernel}), SEGMENTS, dtype)
    expected = np.stack(
        [
            references.short_convolution(row, weights["weight"], segments)
            for row, segments in zip(x.numpy(), SEGMENTS.numpy(), strict=True)
        ]
    )
    assert_equal(module(x.to(dtype), where.same_document), expected)


def test_rope_turns_interleaved_pairs_of_the_first_half(small: MarinMoEConfig, dtype: torch.dtype) -> None:
    seq, heads = SEGMENTS.shape[1], 2
    x = draw(1, seq, heads, small.head_dim)
    where = positions(small, SEGMENTS[:1], dtype)
    expected = np.stack(
        [
            [references.rope(x[0, t, h].numpy(), t, small.head_dim // 2, 10000.0) for h in range(heads)]
            for t in range(seq)
        ]
    )
    assert_equal(rope(x.to(dtype), where.cos, where.sin)[0], expected)


def test_rope_is_exact_far_into_the_sequence(small: MarinMoEConfig) -> None:
    """In float32, too: the angle at position 4,000 is thousands of radians."""
    config = small.model_copy(update={"head_dim": 128})
    where = positions(config, torch.zeros(1, 4001, dtype=torch.long), torch.float32)
    x = draw(1, 4001, 1, 128)
    expected = references.rope(x[0, 4000, 0].numpy(), 4000, 64, 10000.0)
    assert_equal(rope(x.float(), where.cos, where.sin)[0, 4000, 0], expected)


def test_exclude_self_removes_the_own_value(dtype: torch.dtype) -> None:
    batch, seq, heads, kv, head_dim = 2, 3, 6, 2, 5
    y, v = draw(batch, seq, heads, head_dim), draw(batch, seq, kv, head_dim, seed=1)
    found = exclude_self(y.to(dtype), v.to(dtype))
    expected = np.empty(y.shape)
    for b, t, h in np.ndindex(batch, seq, heads):
        expected[b, t, h] = references.exclude_self(y[b, t, h].numpy(), v[b, t, h // (heads // kv)].numpy())
    assert_equal(found, expected)
    along = (found.double().unflatten(2, (kv, -1)) * v.unsqueeze(3)).sum(-1)
    assert along.abs().max() < 1e-4  # the 1e-6 in the denominator leaves that much


@pytest.mark.parametrize(("seq", "window"), [(300, 300), (300, 70), (600, 130), (257, 1)])
def test_attention_in_parts_is_pytorchs_own(seq: int, window: int) -> None:
    """Value and gradients of one call of the kernel over all queries and keys, documents packed."""
    index = torch.arange(seq)
    distance = index[:, None] - index
    segments = torch.stack([index // 90, index // 200])[:, None]
    seen = (segments[..., None] == segments[..., None, :]) & (distance >= 0) & (distance < window)
    mask = torch.zeros(2, 1, seq, seq, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    shapes = ((2, seq, 4, 8), (2, seq, 2, 8), (2, seq, 2, 8))
    q, k, v = (draw(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
    dy = draw(2, seq, 4, 8, seed=3)
    y = causal_attention(q, k, v, mask, 0.4, window)
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scale=0.4, enable_gqa=True
    ).transpose(1, 2)
    found = y, *torch.autograd.grad(y, (q, k, v), dy)
    torch.testing.assert_close(found, (expected, *torch.autograd.grad(expected, (q, k, v), dy)))
