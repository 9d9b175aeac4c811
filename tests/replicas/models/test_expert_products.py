"""The routed experts against a loop over assignments, their gradients, and any selection of experts at all."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from replicas.models import expert_products
from replicas.models.expert_products import expert_capacity, routed_experts

from . import references

WIDTH, HIDDEN = 3, 4


@pytest.fixture(params=["padded", "sorted"], scope="module", autouse=True)
def layout(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test with both layouts, whichever would be chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expert_products, "_sorted_is_faster", lambda *_: request.param == "sorted")
        yield request.param


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrices(n_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(n_experts, HIDDEN, WIDTH, seed=1),
        draw(n_experts, HIDDEN, WIDTH, seed=2),
        draw(n_experts, WIDTH, HIDDEN, seed=3),
    )


@st.composite
def selections(draw_from: st.DrawFn) -> tuple[int, Tensor]:
    """How many experts there are, and distinct ones for each token; often with experts nobody chooses."""
    n_experts = draw_from(st.integers(2, 6))
    top_k = draw_from(st.integers(1, n_experts - 1))
    open_experts = draw_from(st.integers(top_k, n_experts))
    tokens = draw_from(st.integers(1, 8))
    choice = st.permutations(range(open_experts)).map(lambda order: order[:top_k])
    return n_experts, torch.tensor(draw_from(st.lists(choice, min_size=tokens, max_size=tokens)))


def assert_is_the_loop(
    n_experts: int, selected: Tensor, capacity_factor: float | None, group: int | None = None
) -> Tensor:
    """Compare with the loop in both precisions; returns the share dropped."""
    x, combine = draw(len(selected), WIDTH), draw(*selected.shape, seed=4)
    weights = matrices(n_experts)
    capacity = None
    if capacity_factor is not None:
        tokens = group or len(selected)
        capacity = max(1, math.ceil(capacity_factor * tokens * selected.shape[1] / n_experts))
    expected, dropped = references.routed_experts(
        x.numpy(), selected.tolist(), combine.numpy(), *(w.numpy() for w in weights), capacity, group
    )
    scale = max(np.abs(expected).max(), 1e-300)
    share = torch.empty(0)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        arguments = (x.to(dtype), selected, combine.to(dtype), *(w.to(dtype) for w in weights))
        y, share = routed_experts(*arguments, capacity_factor=capacity_factor, capacity_group=group)
        assert y.dtype == dtype
        assert np.abs(y.double().numpy() - expected).max() / scale < tolerance
        assert share.item() == pytest.approx(dropped / selected.numel(), abs=1e-6)
    return share


@given(selections())
def test_dropless_equals_the_loop(case: tuple[int, Tensor]) -> None:
    assert assert_is_the_loop(*case, capacity_factor=None) == 0


@given(selections(), st.sampled_from([0.01, 0.5, 1.0, 1.15, 3.0]))
def test_capacity_drops_in_token_order(case: tuple[int, Tensor], capacity_factor: float) -> None:
    """0.01 leaves every expert a single row."""
    assert_is_the_loop(*case, capacity_factor=capacity_factor)


@given(selections(), st.sampled_from([0.01, 0.5, 1.0, 1.15, 3.0]), st.data())
def test_capacity_is_counted_anew_in_every_group(
    case: tuple[int, Tensor], capacity_factor: float, data: st.DataObject
) -> None:
    n_experts, selected = case
    whole = [group for group in range(1, len(selected) + 1) if len(selected) % group == 0]
    assert_is_the_loop(n_experts, selected, capacity_factor, data.draw(st.sampled_from(whole)))


def test_a_batch_computed_in_parts_of_whole_groups_drops_the_same() -> None:
    """The gradients, too: in one part, in two, in four."""
    selected = torch.stack([torch.arange(16) % 3, torch.full((16,), 3)], dim=1)  # expert 3 is everybody's
    x, combine, weights = draw(16, WIDTH), draw(16, 2, seed=4), matrices(5)

    def outputs(parts: int) -> list[Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in (x, combine, *weights)]
        cut = [tensor.chunk(parts) for tensor in (inputs[0], selected, inputs[1])]
        ys = []
        for part in zip(*cut, strict=True):
            y, dropped = routed_experts(*part, *inputs[2:], capacity_factor=1.0, capacity_group=4)
            assert dropped == 0.25  # two rows of expert 3 for the four tokens of a group
            ys.append(y)
        torch.cat(ys).square().sum().backward()
        return [torch.cat(ys).detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None)]

    expected = outputs(1)
    for parts in (2, 4):
        for found, reference in zip(outputs(parts), expected, strict=True):
            torch.testing.assert_close(found, reference, rtol=1e-12, atol=1e-12)


def test_no_tokens_at_all_are_no_mistake() -> None:
    """As on a rank of expert parallelism to which no token goes."""
    weights = [weight.requires_grad_() for weight in matrices(2)]
    x = draw(0, WIDTH).requires_grad_()
    y, _ = routed_experts(x, torch.zeros(0, 1, dtype=torch.long), torch.ones(0, 1, dtype=x.dtype), *weights)
    y.sum().backward()
    assert y.shape == (0, WIDTH)
    assert all(weight.grad is not None and not weight.grad.any() for weight in weights)


def test_a_cut_group_is_refused() -> None:
    with pytest.raises(ValueError, match="6 tokens are no whole number of capacity groups of 4"):
        routed_experts(draw(6, WIDTH), torch.zeros(6, 1, dtype=torch.long), draw(6, 1), *matrices(2), 1.0, 4)


@pytest.mark.parametrize(("capacity_factor", "dropped"), [(None, 0), (1.0, 0.75), (4.0, 0), (0.01, 0.9375)])
def test_all_tokens_to_one_expert(capacity_factor: float | None, dropped: float) -> None:
    selected = torch.full((16, 1), 2)
    assert assert_is_the_loop(4, selected, capacity_factor) == dropped


def test_capacity_is_the_share_rounded_up_and_at_least_one_row() -> None:
    assert expert_capacity(tokens=4096, top_k=8, n_experts=384, capacity_factor=1.15) == 99  # 98.13
    assert expert_capacity(tokens=4, top_k=2, n_experts=4, capacity_factor=1.0) == 2
    assert expert_capacity(tokens=1, top_k=1, n_experts=384, capacity_factor=1.0) == 1


@pytest.mark.parametrize("capacity_factor", [None, 0.6], ids=["dropless", "with drops"])
def test_gradient(capacity_factor: float | None) -> None:
    selected = torch.tensor([[0, 1], [1, 3], [1, 0], [3, 1], [1, 0]])  # 2 is nobody's, 1 is everybody's
    inputs = [draw(5, WIDTH), draw(5, 2, seed=4), *matrices(4)]
    for tensor in inputs:
        tensor.requires_grad_()

    def outputs(x: Tensor, combine: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return routed_experts(x, selected, combine, gate, up, down, capacity_factor)[0]

    assert gradcheck(outputs, inputs)
    _, dropped = routed_experts(inputs[0], selected, *inputs[1:], capacity_factor=capacity_factor)
    assert (dropped > 0) == (capacity_factor is not None)


@pytest.mark.parametrize("capacity_factor", [None, 0.6], ids=["dropless", "with drops"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grouped_kernel_does_the_same(
    layout: str, monkeypatch: pytest.MonkeyPatch, capacity_factor: float | None, dtype: torch.dtype
) -> None:
    """Values and gradients of the kernel that CUDA uses, which CPUs have, too, only slower."""
    if layout == "padded":
        pytest.skip("grouped products are for sorted rows")
    width, hidden, n_experts = 16, 8, 4
    selected = torch.tensor([[0, 1], [1, 3], [1, 0], [3, 1], [1, 0]])
    shapes = [
        (5, width),
        (5, 2),
        (n_experts, hidden, width),
        (n_experts, hidden, width),
        (n_experts, width, hidden),
    ]

    def outputs() -> list[Tensor]:
        inputs = [draw(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate(shapes)]
        y, _ = routed_experts(inputs[0], selected, *inputs[1:], capacity_factor=capacity_factor)
        y.square().sum().backward()
        return [y.detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None)]

    one_by_one = outputs()
    monkeypatch.setattr(expert_products, "_GROUPED_KERNELS", ("cpu",))
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for found, expected in zip(outputs(), one_by_one, strict=True):
        torch.testing.assert_close(
            found, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item()
        )
