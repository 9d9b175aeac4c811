"""The peer: Hugging Face's `Qwen3MoeForCausalLM`, built from a configuration with nothing downloaded."""

from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.steps import Shape, interleaved

# `batched_mm` is left out: it copies the experts' matrices for every token, some forty times as slow as `grouped_mm`
IMPLEMENTATIONS = ("eager", "grouped_mm")


class QwenStep:
    """A training step with AdamW: forward, backward, clipping, optimizer; the fastest expert implementation."""

    def __init__(self, shape: Shape, expert_width: int) -> None:
        self.shape = shape
        fields: dict[str, Any] = {
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.width,
            "num_hidden_layers": shape.n_layers,
            "num_attention_heads": max(1, shape.width // 16),
            "num_key_value_heads": max(1, shape.width // 64),
            "head_dim": 16,
            "num_experts": shape.n_experts,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": expert_width,
            "max_position_embeddings": shape.seq_len,
            "norm_topk_prob": True,
            "use_cache": False,
        }
        config = transformers.Qwen3MoeConfig(**fields)
        self.model: Any = transformers.Qwen3MoeForCausalLM(config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        generator = torch.Generator().manual_seed(0)
        size = (shape.batch_sequences, shape.seq_len)
        self.ids = torch.randint(shape.vocab_size, size, generator=generator)

    def experts(self, layer: int = 0) -> Any:
        """`experts(x [tokens, width], selected [tokens, top_k], weights)`."""
        return self.model.model.layers[layer].mlp.experts

    def choose(self, run: Any, rounds: int = 3) -> str:
        """Set the expert implementation that makes `run` fastest, and return its name."""

        def with_implementation(name: str) -> Any:
            def timed() -> None:
                self.model.set_experts_implementation(name)
                run()

            return timed

        seconds = interleaved({name: with_implementation(name) for name in IMPLEMENTATIONS}, rounds)
        fastest = min(seconds, key=lambda name: min(seconds[name]))
        self.model.set_experts_implementation(fastest)
        return fastest

    def compile(self) -> None:
        """Compile each layer, the router and experts of which break the graph, as ours do."""
        for layer in self.model.model.layers:
            layer.compile()

    def forward_backward(self) -> Tensor:
        """Gradients of one batch; returns its loss."""
        self.optimizer.zero_grad()
        loss: Tensor = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        return loss

    def run(self) -> None:
        """The whole step."""
        self.forward_backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
