"""A small model of the Marin family in which no two dimensions are equal, so that none can stand in for another."""

from typing import Any

import pytest

from replicas.models.marin_moe import MarinMoEConfig
from replicas.published import load_published

SMALL = {
    "vocab_size": 53,
    "d_model": 22,
    "n_layers": 3,
    "n_heads": 6,
    "head_dim": 8,
    "n_kv_heads_local": 3,
    "n_kv_heads_global": 2,
    "n_experts": 7,
    "top_k": 2,
    "expert_width": 9,
    "latent_dim": 10,
    "n_shared_experts": 2,
    "shared_width": 13,
    "seq_len": 17,
    "sliding_window": 5,
    "global_every": 2,
    "gated_norm_rank": 4,
    "qb_bins": None,
}


@pytest.fixture(scope="session")
def marin() -> MarinMoEConfig:
    """The published configuration, at full size."""
    return load_published("marin-535b").model


@pytest.fixture(scope="session")
def small(marin: MarinMoEConfig) -> MarinMoEConfig:
    """The published constants at a small, uneven shape; layers 1 and 2 are global, layer 0 is local."""
    fields: dict[str, Any] = marin.model_dump() | SMALL
    return MarinMoEConfig(**fields)
