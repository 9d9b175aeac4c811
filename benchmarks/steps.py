"""A whole training step of a Marin replica, for timing: forward, backward, gradient norm, optimizer, router biases."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from replicas.models.expert_products import lay_out
from replicas.models.kernels import cross_entropy_with_z
from replicas.models.layers import RMSNorm, SwiGLU, attention_parts
from replicas.models.marin_moe import MarinMoEConfig
from replicas.optimizers.groups import build_optimizer
from replicas.plan import plan
from replicas.published import load_published

Ratios = np.ndarray[Any, np.dtype[np.float64]]
"""One ratio per round."""


@dataclass(frozen=True)
class Shape:
    """One model and batch; `width` in channels, `seq_len` in tokens."""

    width: int
    n_layers: int
    n_experts: int
    top_k: int
    vocab_size: int
    batch_sequences: int
    seq_len: int

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_sequences * self.seq_len

    def __str__(self) -> str:
        return f"d{self.width}, {self.n_layers} layers, {self.n_experts} experts top-{self.top_k}"


class DenseLatent(nn.Module):
    """What a dense model has in place of the mixture: one expert as wide as those that a token visits together."""

    def __init__(self, config: MarinMoEConfig) -> None:
        super().__init__()
        self.latent_down_proj = nn.Linear(config.d_model, config.latent_dim, bias=False)
        self.latent_norm = RMSNorm(config.latent_dim, config.norm_eps)
        self.experts = SwiGLU(config.latent_dim, config.top_k * config.expert_width)
        self.latent_up_proj = nn.Linear(config.latent_dim, config.d_model, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """`x` `[tokens, d_model]` -> the same shape, and no routing."""
        return self.latent_up_proj(self.experts(self.latent_norm(self.latent_down_proj(x)))), None


class MarinStep:
    """A model at its published initial values, its published optimizer, and one random batch of two documents a row."""

    def __init__(
        self, shape: Shape, dense: bool = False, device: str = "cpu", precision: str = "float32"
    ) -> None:
        published = load_published("marin-535b")
        planned = plan(
            published,
            shape.width,
            tokens=shape.tokens * 1000,
            batch_sequences=shape.batch_sequences,
            n_layers=shape.n_layers,
            n_experts=shape.n_experts,
            top_k=shape.top_k,
            vocab_size=shape.vocab_size,
            seq_len=shape.seq_len,
            qb_bins=None if device == "cpu" else 10_000,
        )
        self.shape, self.config, self.device, self.dense = shape, planned.config, device, dense
        self.model = published.architecture.Model(planned.config)
        if dense:
            for block in self.model.model.layers:
                block.mlp = DenseLatent(planned.config)
        self.model.initialise(0)
        self.model.to(device).train()
        self.optimizer = build_optimizer(
            self.model, published.recipe.optimizer, planned.hyperparameters, 1000, precision
        )
        generator = torch.Generator().manual_seed(0)
        size = (shape.batch_sequences, shape.seq_len)
        self.ids = torch.randint(shape.vocab_size, size, generator=generator).to(device)
        self.segments = (torch.arange(shape.seq_len) >= shape.seq_len // 3).int().expand(size).to(device)
        self.call: Callable[..., Any] = self.model
        self.routings: list[Any] = []

    def compile(self) -> None:
        """As `machine.compile` does."""
        for block in self.model.blocks():
            block.compile()

    def forward_backward(self) -> Tensor:
        """Gradients of one batch; returns its loss."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits, self.routings = self.call(self.ids, self.segments)
            loss, _ = cross_entropy_with_z(
                logits.flatten(0, 1), self.ids.roll(-1, 1).flatten(), float(self.config.z_loss)
            )
        loss.mean().backward()
        return loss

    def update(self) -> None:
        """Optimizer step and router biases."""
        get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        self.optimizer.step()
        if not self.dense:
            self.model.set_router_biases(self.routings)

    def run(self) -> None:
        """The whole step."""
        self.forward_backward()
        self.update()

    def padded_flops(self) -> int:
        """Operations on rows without a token, in the last step's forward and backward pass of the routed experts."""
        c, empty = self.config, 0
        for block, routing in zip(self.model.model.layers, self.routings, strict=True):
            gate = block.mlp.experts.gate_proj.weight
            layout = lay_out(routing.selected, len(gate), c.capacity_factor, c.capacity_group_tokens, gate)
            if layout.rows_per_expert is not None:
                empty += len(layout.token) - int(layout.kept.sum())
        return empty * 3 * 2 * 3 * c.latent_dim * c.expert_width

    def hidden_attention_flops(self) -> int:
        """Operations of attention that a kernel over all keys would do, and which ours leaves out as hidden."""
        c, seq, left_out = self.config, self.shape.seq_len, 0
        for layer in range(c.n_layers):
            window = seq if c.is_global(layer) else c.sliding_window
            parts = attention_parts(seq, window, self.device)
            computed = sum((q.stop - q.start) * (k.stop - k.start) for q, k in parts)
            left_out += seq * seq - computed
        products = 2 + 5  # forward and backward
        return left_out * products * 2 * self.shape.batch_sequences * c.n_heads * c.head_dim


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each run over all threads, `rounds` times in turn, so that all meet the same machine.

    CPU time, for a machine that is busy with other things stops the clock on the wall at random. Every other round
    goes backwards, for what runs first may find other caches. One round before is not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for turn in range(rounds):
        for name, run in list(runs.items())[:: -1 if turn % 2 else 1]:
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return seconds


def speedups(ours: list[float], theirs: list[float]) -> Ratios:
    """How many times as fast, for each round."""
    return np.array(theirs) / np.array(ours)
