"""The Marin 535B-A23B architecture, readable top to bottom, at any width.

A decoder of identical blocks; every matrix is drawn from the same truncated normal:

    x = GatedNorm(RMSNorm(embed[token]))
    for each layer:
        x = x + SConv(Attention(GatedNorm(RMSNorm(x))))
        m = GatedNorm(RMSNorm(x))
        x = x + SConv(LatentMoE(m) + shared_0(m) + shared_1(m))
    logits = GatedNorm(RMSNorm(x)) @ W_out

Equations: `marin-community/marin`, `experiments/grug/moe_hero_ep/model.py` at commit 002b940b. Parameters carry
the names of the public inference export (`GrugMoeForCausalLM`), matrices as `[out, in]`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from experiments.configuration import Config as _Frozen
from replicas.models.architecture import LanguageModel, ParameterCount, Shrunk, compare_ratios
from replicas.models.expert_parallel import exchanged_experts
from replicas.models.expert_products import routed_experts
from replicas.models.kernels import exclude_self, rms_norm, softmax_and_lse, top_k
from replicas.models.layers import (
    GatedNorm,
    RMSNorm,
    SConv,
    SwiGLU,
    causal_attention,
    draw_cut_normal,
    linear_side_by_side,
    rope,
    sum_of_swiglu,
)
from replicas.models.quantile_balancing import balanced_bias, quantile_threshold, quantile_threshold_histogram


class MarinMoEConfig(_Frozen):
    """Shape and constants of one model of this family; widths in channels, lengths in tokens."""

    vocab_size: int = Field(gt=0)
    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    n_kv_heads_local: int = Field(gt=0)  # also the number stored
    n_kv_heads_global: int = Field(gt=0)  # global layers read the first of the stored ones
    n_experts: int = Field(gt=1)
    top_k: int = Field(gt=0)
    expert_width: int = Field(gt=0)
    latent_dim: int = Field(gt=0)
    n_shared_experts: int = Field(ge=0)
    shared_width: int = Field(gt=0)
    seq_len: int = Field(gt=1)
    sliding_window: int = Field(gt=0)  # keys a local query sees, itself included
    global_every: int = Field(gt=0)  # every so many layers, and the last, is global
    rope_theta: float = Field(gt=0)
    rope_fraction: float = Field(gt=0, le=1)
    qk_mult: float
    qk_norm_eps: float = Field(gt=0)
    norm_eps: float = Field(gt=0)
    gated_norm_rank: int = Field(gt=0)
    sconv_kernel: int = Field(gt=0)
    sconv_sites: tuple[str, ...]  # of k, attn, mlp
    combine_scale: float = Field(gt=0)
    capacity_factor: float | None = Field(
        gt=0
    )  # of training; None is dropless. Evaluation is always dropless
    capacity_group_sequences: int = Field(gt=0)  # that fill the experts' capacity together
    z_loss: float = Field(ge=0)
    qb_bins: int | None = Field(gt=1)  # of the quantile-balancing histogram; None takes the exact quantile
    init_scale: float = Field(gt=0)  # sigma = init_scale / sqrt(d_model)

    @model_validator(mode="after")
    def _possible(self) -> "MarinMoEConfig":
        for kv in ("n_kv_heads_local", "n_kv_heads_global"):
            if self.n_heads % getattr(self, kv):
                raise ValueError(f"n_heads ({self.n_heads}) is not a multiple of {kv} ({getattr(self, kv)})")
        if self.n_kv_heads_global > self.n_kv_heads_local:
            raise ValueError("n_kv_heads_global may not exceed n_kv_heads_local, the number stored")
        if self.top_k >= self.n_experts:
            raise ValueError(f"top_k ({self.top_k}) must be below n_experts ({self.n_experts})")
        if self.rotary_dim % 2:
            raise ValueError(f"head_dim x rope_fraction is {self.rotary_dim}; rope turns pairs, make it even")
        unknown = set(self.sconv_sites) - {"k", "attn", "mlp"}
        if unknown:
            raise ValueError(f"sconv_sites {sorted(unknown)} unknown; allowed: k, attn, mlp")
        return self

    @property
    def capacity_group_tokens(self) -> int:
        """Tokens that fill the experts' capacity together."""
        return self.capacity_group_sequences * self.seq_len

    @property
    def rotary_dim(self) -> int:
        """Channels of each head that rope turns."""
        return int(self.head_dim * self.rope_fraction)

    def is_global(self, layer: int) -> bool:
        """Whether `layer` sees the whole document, without rope: every `global_every`-th, and the last."""
        return (layer + 1) % self.global_every == 0 or layer == self.n_layers - 1

    def n_kv_heads(self, layer: int) -> int:
        """KV heads that `layer` reads."""
        return self.n_kv_heads_global if self.is_global(layer) else self.n_kv_heads_local


@dataclass(frozen=True)
class Routing:
    """What one router did with a batch of tokens; the statistics are logged only, none enters the loss.

    Attributes:
        selected: `[tokens, top_k]` expert of each assignment, largest biased logit first.
        combine: `[tokens, top_k]` weights, summing to `combine_scale` per token.
        margins: `[tokens, n_experts]` logit minus the token's (k+1)-th biased logit; what `balanced_bias` needs.
        share, probability: `[n_experts]`, share of the assignments, and softmax probability in the mean.
        router_z_loss: scalar, mean squared log-sum-exp of the logits.
        drop_fraction: scalar, share of assignments beyond their expert's capacity.
    """

    selected: Tensor
    combine: Tensor
    margins: Tensor
    share: Tensor
    probability: Tensor
    router_z_loss: Tensor
    drop_fraction: Tensor

    @property
    def entropy(self) -> Tensor:
        """Entropy of the load in nats, a scalar, as the public run logs it."""
        return -(self.share * torch.log(self.share + 1e-6)).sum()

    @property
    def load_balancing_loss(self) -> Tensor:
        """E * sum(k * share * probability), a scalar, as the public run logs it: k where the load is even."""
        return len(self.share) * (self.selected.shape[-1] * self.share * self.probability).sum()


@dataclass(frozen=True)
class Positions:
    """What attention and convolution need to know of a packed batch, made once per batch.

    Attributes:
        local_mask, global_mask: `[batch, 1, seq, seq]`, 0 where a query may see a key, else -infinity.
        same_document: for each lag 1..kernel-1, `[batch, seq, 1]`: 1 where the token `lag` back is of this document.
        cos, sin: `[seq, rotary_dim / 2]`.
    """

    local_mask: Tensor
    global_mask: Tensor
    same_document: tuple[Tensor, ...]
    cos: Tensor
    sin: Tensor


def positions(config: MarinMoEConfig, segment_ids: Tensor, dtype: torch.dtype) -> Positions:
    """Masks and rope angles for `segment_ids` `[batch, seq]`; positions do not restart at a document."""
    seq, device = segment_ids.shape[1], segment_ids.device
    index = torch.arange(seq, device=device)
    distance = index[:, None] - index[None, :]
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    # as numbers: attention would turn truth values into such in every layer
    seen, barred = torch.tensor([0, -torch.inf], device=device, dtype=dtype)
    global_mask = torch.where(same & (distance >= 0), seen, barred)
    local_mask = torch.where(distance < config.sliding_window, global_mask, barred)
    same_document = tuple(
        F.pad(segment_ids[:, lag:] == segment_ids[:, :-lag], (min(lag, seq), 0)).unsqueeze(-1).to(dtype)
        for lag in range(1, min(config.sconv_kernel, seq))
    )
    # float64 angles: at position 4095 float32 already loses four digits
    pair = torch.arange(0, config.rotary_dim, 2, device=device, dtype=torch.float64)
    angle = index[:, None] * config.rope_theta ** (-pair / config.rotary_dim)
    return Positions(local_mask, global_mask, same_document, angle.cos().to(dtype), angle.sin().to(dtype))


class Attention(nn.Module):
    """Grouped-query attention with QK-norm, half rope on local layers, XSA and a per-head gate."""

    def __init__(self, config: MarinMoEConfig, layer: int) -> None:
        super().__init__()
        self.config, self.is_global, self.kv_heads = config, config.is_global(layer), config.n_kv_heads(layer)
        d, kv = config.d_model, config.n_kv_heads_local * config.head_dim
        self.q_proj = nn.Linear(d, config.n_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(d, kv, bias=False)
        self.v_proj = nn.Linear(d, kv, bias=False)
        self.o_proj = nn.Linear(config.n_heads * config.head_dim, d, bias=False)
        self.attn_gate = nn.Linear(d, config.n_heads, bias=False)
        self.sconv_k = SConv(config.sconv_kernel, kv) if "k" in config.sconv_sites else None

    def forward(self, x: Tensor, where: Positions) -> Tensor:
        """`x` `[batch, seq, d_model]`, normed -> the branch output `[batch, seq, d_model]`."""
        c, (batch, seq, _) = self.config, x.shape
        q, k, v, gate = linear_side_by_side(x, self.q_proj, self.k_proj, self.v_proj, self.attn_gate)
        k = self.sconv_k(k, where.same_document) if self.sconv_k is not None else k
        q = q.view(batch, seq, c.n_heads, c.head_dim)
        k = k.view(batch, seq, c.n_kv_heads_local, c.head_dim)[:, :, : self.kv_heads]
        v = v.view(batch, seq, c.n_kv_heads_local, c.head_dim)[:, :, : self.kv_heads]
        q = rms_norm(q, None, c.qk_norm_eps)
        k = rms_norm(k, None, c.qk_norm_eps)
        if not self.is_global:
            q, k = rope(q, where.cos, where.sin), rope(k, where.cos, where.sin)
        mask, window = (where.global_mask, seq) if self.is_global else (where.local_mask, c.sliding_window)
        y = causal_attention(q, k, v, mask, c.qk_mult / math.sqrt(c.head_dim), window)
        y = exclude_self(y, v) * (2 * torch.sigmoid(gate)).unsqueeze(-1)
        return self.o_proj(y.flatten(2))


class Router(nn.Module):
    """Top-k of logit + bias; the bias is no parameter but set from the last batch by `balanced_bias`."""

    bias: Tensor

    def __init__(self, config: MarinMoEConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_experts, config.d_model))
        self.register_buffer("bias", torch.zeros(config.n_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`x` `[tokens, d_model]` -> logits `[tokens, experts]`, selected `[tokens, k]`, (k+1)-th biased logit.

        Selection sees the bias, the combine weights do not; logits are float32 at least.
        """
        logits = F.linear(x, self.weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        with torch.no_grad():
            return logits, *top_k(logits + self.bias.to(logits.dtype), self.config.top_k)


class ExpertStack(nn.Module):
    """One matrix per routed expert, `[n_experts, out, in]`."""

    def __init__(self, n_experts: int, out_width: int, in_width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, out_width, in_width))


class Experts(nn.Module):
    """The routed SwiGLU experts, latent width in and out.

    Attributes:
        group: the ranks that share the experts out (`expert_parallel.share_out`); None if every rank has them all.
    """

    group: ProcessGroup | None = None

    def __init__(self, config: MarinMoEConfig) -> None:
        super().__init__()
        self.gate_proj = ExpertStack(config.n_experts, config.expert_width, config.latent_dim)
        self.up_proj = ExpertStack(config.n_experts, config.expert_width, config.latent_dim)
        self.down_proj = ExpertStack(config.n_experts, config.latent_dim, config.expert_width)

    def forward(
        self, x: Tensor, selected: Tensor, combine: Tensor, capacity_factor: float | None, capacity_group: int
    ) -> tuple[Tensor, Tensor]:
        """`x` `[tokens, latent_dim]` -> the same shape, and the share dropped; see `routed_experts`."""
        matrices = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
        if self.group is not None:
            return exchanged_experts(
                x, selected, combine, *matrices, self.group, capacity_factor, capacity_group
            )
        return routed_experts(x, selected, combine, *matrices, capacity_factor, capacity_group)


class LatentMoE(nn.Module):
    """Routed experts in a latent space half as wide (arXiv 2601.18089); the router reads the full width."""

    def __init__(self, config: MarinMoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config)
        self.latent_down_proj = nn.Linear(config.d_model, config.latent_dim, bias=False)
        self.latent_norm = RMSNorm(config.latent_dim, config.norm_eps)
        self.experts = Experts(config)
        self.latent_up_proj = nn.Linear(config.latent_dim, config.d_model, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """`x` `[tokens, d_model]` -> the routed output `[tokens, d_model]` and what the router did."""
        c = self.config
        logits, selected, threshold = self.router(x)
        combine = torch.sigmoid(logits.gather(1, selected))
        combine = c.combine_scale * combine / (combine.sum(-1, keepdim=True) + 1e-9)
        u = self.latent_norm(self.latent_down_proj(x))
        capacity_factor = c.capacity_factor if self.training else None
        y, dropped = self.experts(u, selected, combine.to(u.dtype), capacity_factor, c.capacity_group_tokens)
        with torch.no_grad():
            routing = self._statistics(logits.detach(), selected, combine.detach(), threshold, dropped)
        return self.latent_up_proj(y), routing

    def _statistics(
        self, logits: Tensor, selected: Tensor, combine: Tensor, threshold: Tensor, dropped: Tensor
    ) -> Routing:
        n_experts = self.config.n_experts
        probability, lse = softmax_and_lse(logits)
        assignments = selected.flatten()
        # `bincount` has no shape that `torch.compile` could know
        load = assignments.new_zeros(n_experts).scatter_add_(0, assignments, torch.ones_like(assignments))
        return Routing(
            selected=selected,
            combine=combine,
            margins=logits - threshold,
            share=load.to(logits.dtype) / selected.numel(),
            probability=probability.mean(0),
            router_z_loss=lse.square().mean(),
            drop_fraction=dropped,
        )


class Block(nn.Module):
    """One layer: attention branch, then routed and shared experts; no residual scaling."""

    def __init__(self, config: MarinMoEConfig, layer: int) -> None:
        super().__init__()
        d, eps, rank = config.d_model, config.norm_eps, config.gated_norm_rank
        self.input_layernorm, self.attn_gated_norm = RMSNorm(d, eps), GatedNorm(d, rank)
        self.self_attn = Attention(config, layer)
        self.sconv_attn = SConv(config.sconv_kernel, d) if "attn" in config.sconv_sites else None
        self.post_attention_layernorm, self.mlp_gated_norm = RMSNorm(d, eps), GatedNorm(d, rank)
        self.mlp = LatentMoE(config)
        self.shared_experts = nn.ModuleList(
            SwiGLU(d, config.shared_width) for _ in range(config.n_shared_experts)
        )
        self.sconv_mlp = SConv(config.sconv_kernel, d) if "mlp" in config.sconv_sites else None

    def forward(self, x: Tensor, where: Positions) -> tuple[Tensor, Routing]:
        """`x` `[batch, seq, d_model]` -> the next residual stream and this layer's routing."""
        o = self.self_attn(self.attn_gated_norm(self.input_layernorm(x)), where)
        x = x + (self.sconv_attn(o, where.same_document) if self.sconv_attn is not None else o)
        m = self.mlp_gated_norm(self.post_attention_layernorm(x))
        y, routing = self.mlp(m.flatten(0, 1))
        y = y.view_as(m)
        if self.shared_experts:
            y = y + sum_of_swiglu(m, self.shared_experts)
        return x + (self.sconv_mlp(y, where.same_document) if self.sconv_mlp is not None else y), routing


class Decoder(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, config: MarinMoEConfig) -> None:
        super().__init__()
        d, rank = config.d_model, config.gated_norm_rank
        # given its weight, so that nothing is drawn which `initialise` draws anyway
        self.embed_tokens = nn.Embedding(config.vocab_size, d, _weight=torch.empty(config.vocab_size, d))
        self.embed_norm, self.embed_gated_norm = RMSNorm(d, config.norm_eps), GatedNorm(d, rank)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.norm, self.final_gated_norm = RMSNorm(d, config.norm_eps), GatedNorm(d, rank)


class MarinMoE(LanguageModel):
    """The whole language model."""

    def __init__(self, config: MarinMoEConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every matrix from sigma * N(0, 1) cut at 3 sigma, sigma = init_scale / sqrt(d_model).

        Norm gains 1, head gates and router biases 0, convolutions the identity.
        """
        generator = torch.Generator(device=self.lm_head.weight.device).manual_seed(seed)
        sigma = self.config.init_scale / math.sqrt(self.config.d_model)
        for name, p in self.named_parameters():
            if name.endswith("norm.weight"):
                p.fill_(1)
            elif name.endswith("attn_gate.weight"):
                p.zero_()
            elif ".sconv_" in name:
                p.zero_()
                p[0] = 1
            else:
                draw_cut_normal(p, sigma, generator)
        for name, b in self.named_buffers():
            if name.endswith("router.bias"):
                b.zero_()

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> tuple[Tensor, list[Routing]]:
        """`input_ids`, `segment_ids` `[batch, seq]` -> logits `[batch, seq, vocab]` and the routing of each layer."""
        net = self.model
        x = net.embed_gated_norm(net.embed_norm(net.embed_tokens(input_ids)))
        where = positions(self.config, segment_ids, x.dtype)
        routings = []
        for block in net.layers:
            x, routing = block(x, where)
            routings.append(routing)
        return self.lm_head(net.final_gated_norm(net.norm(x))), routings

    def experts(self) -> list[nn.Module]:
        """The routed experts of each layer."""
        return [block.get_submodule("mlp.experts") for block in self.blocks()]

    @torch.no_grad()
    def set_router_biases(self, routings: list[Routing]) -> None:
        """Quantile balancing: what each router saw in this batch sets its bias for the next one.

        A batch with non-finite logits leaves the bias as it is: one NaN in it would enter every later margin.
        """
        routers = [module for module in self.modules() if isinstance(module, Router)]
        for router, routing in zip(routers, routings, strict=True):
            if self.config.qb_bins is None:
                beta = quantile_threshold(routing.margins, self.config.top_k)
            else:
                beta = quantile_threshold_histogram(routing.margins, self.config.top_k, self.config.qb_bins)
            bias = balanced_bias(beta)
            router.bias.copy_(torch.where(bias.isfinite().all(), bias, router.bias))


Config, Model = MarinMoEConfig, MarinMoE


def count_parameters(config: MarinMoEConfig) -> ParameterCount:
    """Parameters as the team counts them: matrices and embeddings; gates, norms and convolutions apart.

    Source: `_active_params` in `small_scale_abl_launch.py` at commit 00d08ae3.
    """
    c, d = config, config.d_model
    attention = 2 * d * c.n_heads * c.head_dim + 2 * d * c.n_kv_heads_local * c.head_dim
    expert = 3 * c.latent_dim * c.expert_width
    dense = attention + d * c.n_experts + 2 * d * c.latent_dim + c.n_shared_experts * 3 * d * c.shared_width
    embedding = c.vocab_size * d
    gated_norms = (2 * c.n_layers + 2) * (d + 2 * d * c.gated_norm_rank)
    channels = {"k": c.n_kv_heads_local * c.head_dim, "attn": d, "mlp": d}
    convolutions = c.sconv_kernel * sum(channels[site] for site in c.sconv_sites)
    return ParameterCount(
        total=c.n_layers * (dense + c.n_experts * expert) + 2 * embedding,
        active=c.n_layers * (dense + c.top_k * expert),
        embedding=embedding,
        lm_head=embedding,
        other=gated_norms + c.n_layers * (c.latent_dim + d * c.n_heads + convolutions),
    )


def train_flops_per_token(config: MarinMoEConfig) -> int:
    """Floating-point operations per token of a training step, three times the forward, without the LM head.

    As the team's ladder plot counts them: every key of a window is counted, causality halves nothing, and the last
    layer counts as local unless it is a `global_every`-th. Source: `plot_scaling_ladder.py` at commit 74f91ba8.
    """
    c, d, inner = config, config.d_model, config.n_heads * config.head_dim
    per_layer = (
        6 * c.latent_dim * c.expert_width * c.top_k
        + 6 * d * c.shared_width * c.n_shared_experts
        + 2 * d * c.n_experts
        + 4 * d * c.latent_dim
    )
    n_global = c.n_layers // c.global_every
    attention = 0
    for layers, kv_heads, keys in (
        (c.n_layers - n_global, c.n_kv_heads_local, min(c.sliding_window, c.seq_len)),
        (n_global, c.n_kv_heads_global, c.seq_len),
    ):
        projections = 2 * d * (inner + 2 * kv_heads * c.head_dim) + 2 * d * inner
        attention += layers * (projections + 4 * inner * keys + 3 * c.n_heads * keys)
    return 3 * (c.n_layers * per_layer + attention)


_RATIOS: dict[str, Callable[[MarinMoEConfig], Any]] = {
    "heads x head_dim / width": lambda c: Fraction(c.n_heads * c.head_dim, c.d_model),
    "head_dim": lambda c: c.head_dim,
    "local KV heads / heads": lambda c: Fraction(c.n_kv_heads_local, c.n_heads),
    "global KV heads / heads": lambda c: Fraction(c.n_kv_heads_global, c.n_heads),
    "layers": lambda c: c.n_layers,
    "global layers": lambda c: f"every {c.global_every}th and the last",
    "window / sequence": lambda c: Fraction(c.sliding_window, c.seq_len),
    "sequence": lambda c: c.seq_len,
    "rope share of a head": lambda c: c.rope_fraction,
    "latent / width": lambda c: Fraction(c.latent_dim, c.d_model),
    "expert width / width": lambda c: Fraction(c.expert_width, c.d_model),
    "shared experts x width / width": lambda c: Fraction(c.n_shared_experts * c.shared_width, c.d_model),
    "top_k / experts": lambda c: Fraction(c.top_k, c.n_experts),
    "top_k": lambda c: c.top_k,
    "gated-norm rank / width": lambda c: Fraction(c.gated_norm_rank, c.d_model),
    "vocabulary": lambda c: c.vocab_size,
    "init sigma x sqrt(width)": lambda c: c.init_scale,
    "qk_mult": lambda c: c.qk_mult,
    "convolution": lambda c: f"kernel {c.sconv_kernel} on {', '.join(c.sconv_sites)}",
    "capacity factor": lambda c: c.capacity_factor,
    "capacity group in sequences": lambda c: c.capacity_group_sequences,
    "z-loss": lambda c: c.z_loss,
    "quantile balancing": lambda c: "exact" if c.qb_bins is None else f"{c.qb_bins}-bin histogram",
}
_WHY = {
    "head_dim": "128 leaves less than one head below width 128",
    "local KV heads / heads": "at least one KV head",
    "global KV heads / heads": "at least one KV head; the published rule is max(1, heads // 8)",
    "layers": "the published depth rule; below it the least depth that keeps the local-global pattern",
    "sequence": "set by the profile",
    "top_k": "with fewer experts the sparsity is kept, not the count",
    "top_k / experts": "set by the profile",
    "gated-norm rank / width": "the rank is 128 at every published width; below 512 its ratio at 512 is kept",
    "vocabulary": "a small corpus fills a small vocabulary",
    "window / sequence": "set by the profile",
    "capacity group in sequences": "whole groups must make up a batch, and the part of it that one device computes",
    "quantile balancing": "the exact quantile is the cheaper one for few tokens; both agree within a bin",
}


def shrink(published: MarinMoEConfig, width: int, **overrides: Any) -> Shrunk[MarinMoEConfig]:
    """The published model at another width, by the published ladder's rule where it reaches.

    Heads of 128 channels, one local KV head per four and one global per eight heads, expert, latent and shared
    width half the width; depth round(d / (55 + 4 log2 d)) rounded up to even. Below width 512, the smallest
    published, heads have 16 channels, depth is at least `global_every`, and the gated norms' rank is width / 4.

    Args:
        overrides: fields set outright, e.g. `n_experts`, `top_k`, `vocab_size`, `seq_len`; a `seq_len` moves the
            sliding window in proportion unless that is given too.

    Raises:
        ValueError: the width is no multiple of the head size, or the fields do not fit together.
    """
    head_dim = published.head_dim if width >= 512 else 16
    if width <= 0 or width % head_dim:
        raise ValueError(f"width {width} is not a multiple of {head_dim}, the channels of one head")
    n_heads = width // head_dim
    depth = round(width / (55 + 4 * math.log2(width)))
    depth = max(published.global_every, depth + depth % 2)
    half = width // 2
    fields: dict[str, Any] = {
        "d_model": width,
        "n_layers": published.n_layers if width == published.d_model else depth,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "n_kv_heads_local": max(1, n_heads // 4),
        "n_kv_heads_global": max(1, n_heads // 8),
        "expert_width": half,
        "latent_dim": half,
        "shared_width": half,
        "gated_norm_rank": published.gated_norm_rank if width >= 512 else width // 4,
    }
    if "seq_len" in overrides:
        fields["sliding_window"] = max(
            1, overrides["seq_len"] * published.sliding_window // published.seq_len
        )
    config = MarinMoEConfig(**{**published.model_dump(), **fields, **overrides})
    return compare_ratios(published, config, _RATIOS, _WHY)
