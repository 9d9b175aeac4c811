"""The hand-written backward passes against numerical differentiation, and the values against their definitions."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from replicas.models.kernels import (
    cross_entropy_with_z,
    exclude_self,
    rms_norm,
    short_convolution,
    softmax_and_lse,
    top_k,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_()


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 5)], ids=["rows", "heads"])
@pytest.mark.parametrize("weighted", [False, True], ids=["bare", "with a gain"])
def test_rms_norm_gradient(shape: tuple[int, ...], weighted: bool) -> None:
    x, weight = draw(*shape), draw(shape[-1], seed=1) if weighted else None
    # a large eps: with a small one its part in the gradient would pass unseen
    assert gradcheck(lambda x, w: rms_norm(x, w, 0.3), (x, weight))
    expected = F.rms_norm(x, shape[-1:], weight, 0.3)
    torch.testing.assert_close(rms_norm(x, weight, 0.3), expected, rtol=1e-12, atol=1e-12)


def test_rms_norm_of_half_precision_is_taken_in_float32() -> None:
    x = 300 * torch.ones(2, 8, dtype=torch.float16)  # its square overflows in float16
    assert torch.equal(rms_norm(x, None, 1e-5), torch.ones_like(x))


@pytest.mark.parametrize("kernel", [1, 3, 6])
def test_short_convolution_gradient(kernel: int) -> None:
    segments = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 2]])
    seq = segments.shape[1]
    same = tuple(
        F.pad(segments[:, lag:] == segments[:, :-lag], (lag, 0)).unsqueeze(-1).double()
        for lag in range(1, min(kernel, seq))
    )
    x, weight = draw(2, seq, 2), draw(kernel, 2, seed=1)
    assert gradcheck(lambda x, w: short_convolution(x, w, same), (x, weight))


@pytest.mark.parametrize("z_loss", [0.0, 0.2])
def test_cross_entropy_with_z_gradient(z_loss: float) -> None:
    logits, targets = draw(4, 5), torch.tensor([0, 4, 2, 2])
    assert gradcheck(lambda x: cross_entropy_with_z(x, targets, z_loss)[0], (logits,))


@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["mild", "overflowing exponentials"])
def test_cross_entropy_with_z_values(scale: float) -> None:
    logits, targets = draw(4, 5).detach() * scale, torch.tensor([0, 4, 2, 2])
    loss, nats = cross_entropy_with_z(logits, targets, 1e-4)
    expected = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(nats, expected, rtol=1e-12, atol=1e-12)
    z = torch.logsumexp(logits, -1).square()
    torch.testing.assert_close(loss, expected + 1e-4 * z, rtol=1e-12, atol=1e-12)


def test_cross_entropy_of_half_precision_is_taken_in_float32() -> None:
    logits = draw(4, 5).detach()
    targets = torch.tensor([0, 4, 2, 2])
    half = logits.bfloat16().requires_grad_()
    loss, nats = cross_entropy_with_z(half, targets, 0.0)
    assert loss.dtype == nats.dtype == torch.float32
    assert torch.equal(nats, cross_entropy_with_z(half.detach().float(), targets, 0.0)[1])
    loss.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_exclude_self_gradient(kv_heads: int) -> None:
    assert gradcheck(exclude_self, (draw(2, 3, 4, 5), draw(2, 3, kv_heads, 5, seed=1)))


@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["mild", "overflowing exponentials"])
def test_softmax_and_lse(scale: float) -> None:
    logits = draw(4, 5).detach() * scale
    probability, lse = softmax_and_lse(logits)
    torch.testing.assert_close(probability, torch.softmax(logits, -1))
    torch.testing.assert_close(lse, torch.logsumexp(logits, -1), rtol=1e-12, atol=1e-12)


@given(st.integers(1, 9), st.integers(2, 12), st.integers(0, 2**31), st.booleans())
def test_top_k_equals_sorting(rows: int, columns: int, seed: int, ties: bool) -> None:
    """Ties fall to the earlier column for as few as are found one by one; the next value is sure in any case."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, columns, generator=generator)
    scores = scores.mul(2).round() if ties else scores
    for k in range(1, columns):
        indices, runner_up = top_k(scores, k)
        order = torch.sort(scores, descending=True, stable=True, dim=-1)
        assert torch.equal(runner_up, order.values[:, k : k + 1])
        if k <= 4 or not ties:
            assert torch.equal(indices, order.indices[:, :k])


def test_top_k_leaves_its_argument_alone() -> None:
    scores = draw(3, 5).detach()
    before = scores.clone()
    top_k(scores, 2)
    assert torch.equal(scores, before)
