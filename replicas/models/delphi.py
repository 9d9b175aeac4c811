"""The Delphi architecture, the dense sibling of the Marin runs: Qwen 3 with as many KV as query heads, no biases.

    x = embed[token]
    for each layer:
        x = x + Attention(RMSNorm(x))
        x = x + SwiGLU(RMSNorm(x))
    logits = RMSNorm(x) @ W_out

Equations: `marin-community/marin`, `lib/levanter/src/levanter/models/qwen.py` at commit 03b8c25c, as set up by
`experiments/scaling_law_sweeps/completed_adamh.py` at commit 054a715f. Parameters carry the names of Hugging Face's
`Qwen3ForCausalLM`, matrices as `[out, in]`.
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

from experiments.configuration import Config as _Frozen
from replicas.models.architecture import LanguageModel, ParameterCount, Shrunk, compare_ratios
from replicas.models.layers import RMSNorm, SwiGLU, draw_cut_normal


class DelphiConfig(_Frozen):
    """Shape and constants of one model of this family; widths in channels, lengths in tokens."""

    vocab_size: int = Field(gt=0)
    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    n_heads: int = Field(gt=0)  # of keys and values too
    head_dim: int = Field(gt=0)
    mlp_width: int = Field(gt=0)
    seq_len: int = Field(gt=1)
    rope_theta: float = Field(gt=0)
    rope_factor: float = Field(ge=1)  # what slow rotations are divided by; 1 leaves all as they are
    rope_low_frequency: float = Field(gt=0)  # slow: at most so many turns in `rope_original_seq_len`
    rope_high_frequency: float = Field(gt=0)  # fast: at least so many; left as they are
    rope_original_seq_len: int = Field(gt=0)
    norm_eps: float = Field(gt=0)
    z_loss: float = Field(ge=0)
    init_scale: float = Field(gt=0)  # sigma = init_scale / sqrt(fan_in), embeddings init_scale / d_model

    @model_validator(mode="after")
    def _possible(self) -> "DelphiConfig":
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rope turns pairs, make it even")
        if self.rope_high_frequency <= self.rope_low_frequency:
            raise ValueError("rope_high_frequency must be above rope_low_frequency")
        return self


@dataclass(frozen=True)
class Positions:
    """What attention needs to know of a packed batch, made once per batch.

    Attributes:
        mask: `[batch, 1, seq, seq]`, True where a query may see a key.
        cos, sin: `[seq, 1, head_dim / 2]`.
    """

    mask: Tensor
    cos: Tensor
    sin: Tensor


def rope_frequencies(config: DelphiConfig) -> Tensor:
    """Radians per token of each channel pair, `[head_dim / 2]` in float64, slowed down as in Llama 3.

    theta^(-2i / head_dim), divided by `rope_factor` where a rotation makes fewer than `rope_low_frequency` turns
    in `rope_original_seq_len` tokens, kept where it makes more than `rope_high_frequency`, linear in between.
    Source: `lib/levanter/src/levanter/layers/rotary.py` at commit 3560cb28.
    """
    pair = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequency = config.rope_theta ** (-pair / config.head_dim)
    turns = config.rope_original_seq_len * frequency / (2 * math.pi)
    low, high = config.rope_low_frequency, config.rope_high_frequency
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / config.rope_factor)


def positions(config: DelphiConfig, segment_ids: Tensor, dtype: torch.dtype) -> Positions:
    """Mask and rope angles for `segment_ids` `[batch, seq]`; positions do not restart at a document."""
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device)
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    angle = index[:, None, None] * rope_frequencies(config).to(index.device)
    return Positions(same & (index[:, None] >= index), angle.cos().to(dtype), angle.sin().to(dtype))


def rope(x: Tensor, where: Positions) -> Tensor:
    """Turn `x` `[batch, seq, heads, head_dim]`, channel i of the first half paired with i of the second."""
    first, second = x.chunk(2, dim=-1)
    turned = first * where.cos - second * where.sin, second * where.cos + first * where.sin
    return torch.cat(turned, dim=-1)


class Attention(nn.Module):
    """Multi-head attention with learned QK-norm and rope over the whole head."""

    def __init__(self, config: DelphiConfig) -> None:
        super().__init__()
        self.config = config
        d, inner = config.d_model, config.n_heads * config.head_dim
        self.q_proj = nn.Linear(d, inner, bias=False)
        self.k_proj = nn.Linear(d, inner, bias=False)
        self.v_proj = nn.Linear(d, inner, bias=False)
        self.o_proj = nn.Linear(inner, d, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, where: Positions) -> Tensor:
        """`x` `[batch, seq, d_model]`, normed -> the branch output `[batch, seq, d_model]`."""
        heads = (self.config.n_heads, self.config.head_dim)
        q = rope(self.q_norm(self.q_proj(x).unflatten(2, heads)), where)
        k = rope(self.k_norm(self.k_proj(x).unflatten(2, heads)), where)
        v = self.v_proj(x).unflatten(2, heads)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=where.mask
        )
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One layer: attention branch, then feed-forward branch."""

    def __init__(self, config: DelphiConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = SwiGLU(config.d_model, config.mlp_width)

    def forward(self, x: Tensor, where: Positions) -> Tensor:
        """`x` `[batch, seq, d_model]` -> the next residual stream."""
        x = x + self.self_attn(self.input_layernorm(x), where)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, config: DelphiConfig) -> None:
        super().__init__()
        empty = torch.empty(config.vocab_size, config.d_model)  # `initialise` draws it
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, _weight=empty)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)


class Delphi(LanguageModel):
    """The whole language model."""

    def __init__(self, config: DelphiConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every matrix from sigma * N(0, 1) cut at 3 sigma, sigma = init_scale / sqrt(its inputs).

        The embedding has sigma = init_scale / d_model, norm gains are 1. Source: `lib/haliax/src/haliax/nn`,
        linear.py at commit 11d8be71, embedding.py at 543a5911, mup.py at 5408381e.
        """
        generator = torch.Generator(device=self.lm_head.weight.device).manual_seed(seed)
        for name, p in self.named_parameters():
            if name.endswith("norm.weight"):
                p.fill_(1)
            else:
                inputs = p.shape[1]
                sigma = self.config.init_scale / (inputs if "embed" in name else math.sqrt(inputs))
                draw_cut_normal(p, sigma, generator)

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> tuple[Tensor, list[Any]]:
        """`input_ids`, `segment_ids` `[batch, seq]` -> logits `[batch, seq, vocab]`, and no routing."""
        x = self.model.embed_tokens(input_ids)
        where = positions(self.config, segment_ids, x.dtype)
        for block in self.model.layers:
            x = block(x, where)
        return self.lm_head(self.model.norm(x)), []


Config, Model = DelphiConfig, Delphi


def count_parameters(config: DelphiConfig) -> ParameterCount:
    """Parameters as the model cards count them: all of them, norms included; active without the embeddings."""
    c, d = config, config.d_model
    block = 4 * d * c.n_heads * c.head_dim + 2 * c.head_dim + 3 * d * c.mlp_width + 2 * d
    active, embedding = c.n_layers * block + d, c.vocab_size * d
    return ParameterCount(active + 2 * embedding, active, embedding, lm_head=embedding, other=0)


def train_flops_per_token(config: DelphiConfig) -> int:
    """Floating-point operations per token of a training step, three times the forward, without the LM head.

    Every key of the sequence is counted, causality halves nothing. The team's budgets, e.g. 10^23, count the head
    too: 6 d_model vocab_size more. Source: `lib/levanter/src/levanter/utils/flop_utils.py` at commit 0a2b32cd.
    """
    c, d, inner = config, config.d_model, config.n_heads * config.head_dim
    attention = 8 * d * inner + c.seq_len * (4 * inner + 3 * c.n_heads)
    return 3 * c.n_layers * (attention + 6 * d * c.mlp_width)


_RATIOS: dict[str, Callable[[DelphiConfig], Any]] = {
    "heads x head_dim / width": lambda c: Fraction(c.n_heads * c.head_dim, c.d_model),
    "head_dim": lambda c: c.head_dim,
    "layers": lambda c: c.n_layers,
    "feed-forward width / width": lambda c: Fraction(c.mlp_width, c.d_model),
    "sequence": lambda c: c.seq_len,
    "rope": lambda c: f"theta {c.rope_theta:g}, factor {c.rope_factor:g} over {c.rope_original_seq_len}",
    "vocabulary": lambda c: c.vocab_size,
    "init sigma x sqrt(fan-in)": lambda c: c.init_scale,
    "z-loss": lambda c: c.z_loss,
}
_WHY = {
    "head_dim": "128 leaves less than one head below width 128",
    "layers": "the published depth rule, at least one layer",
    "vocabulary": "a small corpus fills a small vocabulary",
}


def shrink(published: DelphiConfig, width: int, **overrides: Any) -> Shrunk[DelphiConfig]:
    """The published model at another width, by the rule of the published sweep where it reaches.

    Heads of 128 channels, feed-forward width four times the width, depth round(d / (55 + 4 log2 d)). Below width
    512, the smallest published, heads have 16 channels. `overrides` are fields set outright, e.g. `vocab_size`.

    Raises:
        ValueError: the width is no multiple of the head size, or the fields do not fit together.
    """
    head_dim = published.head_dim if width >= 512 else 16
    if width <= 0 or width % head_dim:
        raise ValueError(f"width {width} is not a multiple of {head_dim}, the channels of one head")
    fields = {
        "d_model": width,
        "n_layers": max(1, round(width / (55 + 4 * math.log2(width)))),
        "n_heads": width // head_dim,
        "head_dim": head_dim,
        "mlp_width": width * published.mlp_width // published.d_model,
    }
    config = DelphiConfig(**{**published.model_dump(), **fields, **overrides})
    return compare_ratios(published, config, _RATIOS, _WHY)
