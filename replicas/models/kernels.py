"""Operations whose backward pass is written by hand: fewer passes over memory than what autograd records.

Each equals its one-line definition in value and gradient (`gradcheck` in the tests); they matter where widths are
small and a step is hundreds of element-wise passes.
"""

from typing import Any

import torch
from torch import Tensor


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse = torch.rsqrt(
            torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / x.shape[-1] + eps
        )
        ctx.save_for_backward(x, weight, inverse)
        y = wide * inverse
        return (y if weight is None else y.mul_(weight)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, inverse = ctx.saved_tensors
        dy = grads[0].to(inverse.dtype)
        normed = x * inverse
        product = dy * normed
        dw = None
        if weight is not None:
            dw = product.flatten(0, -2).sum(0).to(weight.dtype)
            product, dy = product.mul_(weight), dy * weight
        dx = torch.addcmul(dy, normed, product.mean(-1, keepdim=True), value=-1).mul_(inverse)
        return dx.to(x.dtype), dw, None


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 at least, cast back."""
    return _RMSNorm.apply(x, weight, eps)


class _ShortConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *same_document: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, *same_document)
        y = x * weight[0]
        for lag, same in enumerate(same_document, start=1):
            y[:, lag:].addcmul_(x[:, :-lag] * same[:, lag:], weight[lag])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, *same_document = ctx.saved_tensors
        dy = grads[0]
        dx, dw = dy * weight[0], torch.empty_like(weight)
        dw[0] = (dy * x).sum((0, 1))
        for lag, same in enumerate(same_document, start=1):
            reaching = dy[:, lag:] * same[:, lag:]
            dx[:, :-lag].addcmul_(reaching, weight[lag])
            dw[lag] = reaching.mul_(x[:, :-lag]).sum((0, 1))
        for lag in range(len(same_document) + 1, len(weight)):
            dw[lag] = 0
        return dx, dw, *(None for _ in same_document)


def short_convolution(x: Tensor, weight: Tensor, same_document: tuple[Tensor, ...]) -> Tensor:
    """Depthwise causal convolution inside documents.

    Args:
        x: `[batch, seq, channels]`; weight: `[kernel, channels]`, tap 0 on the token itself.
        same_document: for each lag from 1, `[batch, seq, 1]`: 1 where the token `lag` back is of this document.

    Returns:
        y[t] = sum over lags of weight[lag] * x[t - lag], the same shape as `x`.
    """
    return _ShortConvolution.apply(x, weight, *same_document)


class _CrossEntropyWithZ(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        top = wide.amax(-1, keepdim=True)
        probability = (wide - top).exp_()
        total = probability.sum(-1, keepdim=True)
        lse = (top + total.log()).squeeze(-1)
        nats = lse - wide.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(probability.div_(total), targets, lse)
        ctx.z_loss, ctx.dtype = z_loss, logits.dtype
        ctx.mark_non_differentiable(nats)
        return nats + z_loss * lse.square(), nats

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        probability, targets, lse = ctx.saved_tensors
        d = grads[0].unsqueeze(-1)
        dlogits = probability * (d * (1 + 2 * ctx.z_loss * lse.unsqueeze(-1)))
        dlogits.scatter_add_(-1, targets.unsqueeze(-1), -d)
        return dlogits.to(ctx.dtype), None, None


def cross_entropy_with_z(logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Per-token loss in nats, with and without the z term.

    Args:
        logits: `[tokens, vocab]`; targets: `[tokens]`.
        z_loss: weight of log-sum-exp squared, which keeps the logits' scale from drifting.

    Returns:
        `[tokens]` cross-entropy + z_loss * lse^2, which is what the public run logs as its loss, and `[tokens]`
        cross-entropy alone, without gradient.
    """
    return _CrossEntropyWithZ.apply(logits, targets, z_loss)
