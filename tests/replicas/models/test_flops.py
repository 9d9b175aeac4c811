"""The benchmarks' FLOP formulas against PyTorch's own for the same arithmetic spelled out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.flops import count_flops
from replicas.models import expert_products
from replicas.models.expert_products import routed_experts

TOKENS, TOP_K, EXPERTS, WIDTH, HIDDEN = 24, 2, 4, 16, 8


def even_load() -> Tensor:
    """The experts of each token; all of them have as many."""
    return torch.stack((torch.arange(TOKENS) % EXPERTS, (torch.arange(TOKENS) + 1) % EXPERTS), 1)


def experts_flops(
    patch: pytest.MonkeyPatch, layout: str, selected: Tensor, capacity_factor: float | None = None
) -> int:
    """Forward and backward of the routed experts in one of the ways they are computed."""
    patch.setattr(expert_products, "_sorted_is_faster", lambda *_: layout != "padded")
    patch.setattr(expert_products, "_GROUPED_KERNELS", ("cpu",) if layout == "grouped" else ())
    x = torch.randn(TOKENS, WIDTH, requires_grad=True)
    combine = torch.rand(selected.shape)
    shapes = ((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    matrices = [torch.randn(EXPERTS, *shape, requires_grad=True) for shape in shapes]
    return count_flops(
        lambda: routed_experts(x, selected, combine, *matrices, capacity_factor)[0].sum().backward()
    )


@pytest.mark.parametrize("layout", ["padded", "sorted", "grouped"])
def test_an_even_load_costs_the_same_in_every_layout(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    multiply_adds = TOKENS * TOP_K * 3 * WIDTH * HIDDEN
    assert experts_flops(monkeypatch, layout, even_load()) == 3 * 2 * multiply_adds


@pytest.mark.parametrize(("capacity_factor", "padded"), [(None, 4), (1.5, 1.5), (1.0, 1), (9.0, 4)])
def test_padding_counts(
    monkeypatch: pytest.MonkeyPatch, capacity_factor: float | None, padded: float
) -> None:
    """Every expert takes as many rows as the fullest one, at most its capacity: here one has all tokens."""
    everybody = torch.zeros(TOKENS, 1, dtype=torch.int64)
    even = experts_flops(monkeypatch, "padded", even_load()) / TOP_K
    assert experts_flops(monkeypatch, "padded", everybody, capacity_factor) == padded * even


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_counts_as_its_products_do(kv_heads: int) -> None:
    """The CPU's kernel against the same attention from matrix products; only its backward computes scores again."""
    query = torch.randn(2, 4, 8, 16, requires_grad=True)
    key, value = (torch.randn(2, kv_heads, 8, 16, requires_grad=True) for _ in range(2))
    mask = torch.zeros(2, 1, 8, 8)

    def attention() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)

    with torch.no_grad():
        fused = count_flops(attention)
        with sdpa_kernel(SDPBackend.MATH):
            assert fused == count_flops(attention) > 0
    scores = 2 * 2 * 4 * 8 * 8 * 16
    assert count_flops(lambda: attention().sum().backward()) == 7 * scores
