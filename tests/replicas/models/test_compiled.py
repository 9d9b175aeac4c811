"""Blocks compiled to C++ compute what they compute eagerly, and are compiled once."""

import os
import shutil
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from replicas.models.marin_moe import Block, MarinMoE, MarinMoEConfig, positions
from replicas.published import load_published


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def _run(block: Block, config: MarinMoEConfig, x: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
    """Output, and gradients of input and parameters."""
    x = x.clone().requires_grad_()
    y, routing = block(x, positions(config, segments, x.dtype))
    gradients = torch.autograd.grad(y.square().mean(), [x, *block.parameters()])
    return y.detach(), routing.share, routing.margins, *gradients


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is None,
    reason="no C++ compiler",
)
def test_a_compiled_block_is_the_eager_one() -> None:
    """Only the routed experts break the graph; batches with another load compile nothing again."""
    published = load_published("marin-535b")
    config = published.architecture.shrink(
        published.model, 16, n_experts=4, top_k=2, vocab_size=50, seq_len=32, capacity_group_sequences=2
    ).config
    model = MarinMoE(config)
    model.initialise(0)
    block = model.train().blocks()[0]
    assert isinstance(block, Block)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, 32, 16, generator=generator) for _ in range(3)]
    segments = (torch.arange(32) >= 10).int().expand(2, 32)
    expected = [_run(block, config, x, segments) for x in batches]
    block.compile()
    graphs = []
    for x, eager in zip(batches, expected, strict=True):
        for found, value in zip(_run(block, config, x, segments), eager, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [graphs[0]] * len(batches)
    assert all("routed_experts" in reason for reason in counters["graph_break"])
