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
        along = dy * x
        if weight is None:
            dw, scaled, dot = None, dy * inverse, along.sum(-1, keepdim=True)
        else:
            wide = weight.to(inverse.dtype)
            rows = along.flatten(0, -2)
            dw = torch.mv(rows.mT, inverse.flatten()).to(weight.dtype)
            scaled, dot = (dy * wide).mul_(inverse), torch.mv(rows, wide).view_as(inverse)
        dx = scaled.addcmul_(x, dot.mul_(inverse.pow(3)), value=-1 / x.shape[-1])
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


class _ExcludeSelf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor) -> Tensor:
        y, v = y.unflatten(2, (v.shape[2], -1)), v.unsqueeze(3)
        norm = v.square().sum(-1, keepdim=True).add_(1e-6)
        share = (y * v).sum(-1, keepdim=True).div_(norm)
        ctx.save_for_backward(y, v, norm, share)
        return torch.addcmul(y, share, v, value=-1).flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        y, v, norm, share = ctx.saved_tensors
        dz = grads[0].unflatten(2, (v.shape[2], -1))
        dshare = (dz * v).sum(-1, keepdim=True).div_(norm)  # less a sign
        dy = torch.addcmul(dz, dshare, v, value=-1)
        dv = (share * dz).addcmul_(dshare, y).sum(3)
        dv = dv.addcmul_((share * dshare).sum(3), v.squeeze(3), value=-2).neg_()
        return dy.flatten(2, 3), dv


def exclude_self(y: Tensor, v: Tensor) -> Tensor:
    """XSA: remove from each head's output its component along the token's own value, y - v (y.v) / (v.v + 1e-6).

    `y` `[batch, seq, heads, head_dim]`, `v` `[batch, seq, kv_heads, head_dim]`; head h owns value h // (heads / kv).
    """
    return _ExcludeSelf.apply(y, v)


def softmax_and_lse(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the last dimension and the log-sum-exp `[...]`, by one pass of exponentials."""
    probability = torch.softmax(logits, -1)
    # the largest probability never underflows
    return probability, logits.amax(-1) - probability.amax(-1).log_()


class _CrossEntropyWithZ(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        probability, lse = softmax_and_lse(wide)
        nats = lse - wide.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(probability, targets, lse)
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


_FEW = 4  # up to which k maxima are faster than a partial sort on a CPU; measured on 2048 rows of 96


@torch.library.custom_op(
    "maquette::top_k", mutates_args=()
)  # numpy would break the graphs of `torch.compile`
def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Which k entries of each row are largest, and the largest of the others; k is below the row's length.

    Args:
        scores: `[rows, columns]`.

    Returns:
        `[rows, k]` columns, of the largest entry first, and `[rows, 1]` the (k+1)-th largest value.
    """
    if scores.device.type != "cpu" or k > _FEW or scores.dtype not in (torch.float32, torch.float64):
        top = torch.topk(scores, k + 1, dim=-1)
        return top.indices[:, :-1].clone(), top.values[:, -1:].clone()
    rest, columns = scores.detach().clone(), []
    for _ in range(k):
        # numpy's search is several times faster over rows of some hundred; it takes the first of equals, too
        columns.append(torch.from_numpy(rest.numpy().argmax(-1)).unsqueeze(-1))
        rest.scatter_(-1, columns[-1], -torch.inf)
    return torch.cat(columns, -1), rest.amax(-1, keepdim=True)


@top_k.register_fake
def _(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return scores.new_empty((len(scores), k), dtype=torch.int64), scores.new_empty((len(scores), 1))
