"""What a configuration may be, and its counts against a model that is built and run."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from replicas.models.kernels import cross_entropy_with_z
from replicas.models.marin_moe import (
    MarinMoE,
    MarinMoEConfig,
    count_parameters,
    shrink,
    train_flops_per_token,
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"top_k": 7}, r"top_k \(7\) must be below n_experts \(7\)"),
        ({"top_k": 0}, r"top_k\n.*greater than 0"),
        ({"head_dim": 6}, "head_dim x rope_fraction is 3; rope turns pairs, make it even"),
        ({"rope_fraction": 1.5}, r"rope_fraction\n.*less than or equal to 1"),
        ({"n_kv_heads_local": 4}, r"n_heads \(6\) is not a multiple of n_kv_heads_local \(4\)"),
        ({"n_kv_heads_global": 4}, r"n_heads \(6\) is not a multiple of n_kv_heads_global \(4\)"),
        ({"n_kv_heads_global": 6}, "n_kv_heads_global may not exceed n_kv_heads_local, the number stored"),
        ({"sconv_sites": ("k", "v")}, r"sconv_sites \['v'\] unknown; allowed: k, attn, mlp"),
        ({"capacity_factor": 0.0}, r"capacity_factor\n.*greater than 0"),
        ({"n_expert": 8}, r"n_expert\n.*not permitted"),
    ],
)
def test_an_impossible_shape_is_refused(small: MarinMoEConfig, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        MarinMoEConfig(**{**small.model_dump(), **change})


@pytest.mark.parametrize("width", [0, -64, 100, 576])
def test_a_width_between_two_heads_is_refused(marin: MarinMoEConfig, width: int) -> None:
    with pytest.raises(ValueError, match=f"width {width} is not a multiple of"):
        shrink(marin, width)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sconv_sites": ("k",)},
        {"sconv_sites": ()},
        {"n_shared_experts": 0, "n_layers": 4},
        {"sconv_kernel": 1, "rope_fraction": 1.0},
    ],
)
def test_counts_equal_the_built_model(small: MarinMoEConfig, change: dict[str, Any]) -> None:
    config = MarinMoEConfig(**{**small.model_dump(), **change})
    with torch.device("meta"):
        sizes = {name: p.numel() for name, p in MarinMoE(config).named_parameters()}
    counted = count_parameters(config)
    apart = [n for name, n in sizes.items() if "norm" in name or "sconv" in name or "attn_gate" in name]
    assert counted.other == sum(apart)
    assert counted.total + counted.other == sum(sizes.values())
    experts = sum(n for name, n in sizes.items() if ".experts." in name and "shared" not in name)
    idle = experts * (config.n_experts - config.top_k) // config.n_experts
    assert counted.active == counted.total - counted.embedding - counted.lm_head - idle


def test_flops_equal_those_counted_from_the_operators(marin: MarinMoEConfig) -> None:
    """The team's formula plus everything it is known to pass over is exactly what PyTorch counts.

    The window spans the sequence, since the plain attention counted here multiplies masked keys, too; capacity
    is one fair share, since the batched product multiplies empty rows, too; the depth is a multiple of
    `global_every`, since the formula takes the last layer for local otherwise.
    """
    shape = {
        "n_experts": 8,
        "top_k": 2,
        "seq_len": 32,
        "sliding_window": 32,
        "vocab_size": 50,
        "n_kv_heads_local": 2,
    }
    c = shrink(marin, 64, **shape, capacity_factor=1.0).config
    assert c.n_layers % c.global_every == 0
    model = MarinMoE(c)
    model.initialise(0)
    ids = torch.randint(c.vocab_size, (2, c.seq_len), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits, _ = model(ids, torch.zeros_like(ids))
        cross_entropy_with_z(logits.flatten(0, 1), ids.flatten(), c.z_loss)[0].mean().backward()
    n_global = c.n_layers // c.global_every
    passed_over = (
        2 * c.d_model * c.vocab_size
        + (2 * c.n_layers + 2) * 4 * c.d_model * c.gated_norm_rank
        + c.n_layers * 2 * c.d_model * c.n_heads  # head gates
        # global layers project all stored KV heads and use some
        + n_global * 4 * c.d_model * (c.n_kv_heads_local - c.n_kv_heads_global) * c.head_dim
    )
    softmax = c.n_layers * 3 * c.n_heads * c.seq_len  # in the formula, no matrix product
    expected = train_flops_per_token(c) + 3 * (passed_over - softmax)
    assert counter.get_total_flops() == ids.numel() * expected
