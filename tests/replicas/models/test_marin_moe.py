"""Attention, router and mixture against loops in float64; what a token may reach; what a bad batch may break."""

import numpy as np
import pytest
import torch
from torch import Tensor

from replicas.models.expert_products import expert_capacity
from replicas.models.marin_moe import Attention, LatentMoE, MarinMoE, MarinMoEConfig, positions

from . import references

SEGMENTS = torch.tensor([[0] * 3 + [1] * 7 + [2] * 7, [0] * 17])
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def fill(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Random parameters and buffers, so large that every gate and tap matters; returns them."""
    module.double()
    with torch.no_grad():
        for i, tensor in enumerate(module.state_dict().values()):
            tensor.copy_(draw(*tensor.shape, seed=i + 1) * 0.4)
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}


def model_of(config: MarinMoEConfig) -> MarinMoE:
    model = MarinMoE(config)
    fill(model)
    return model.eval()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("layer", [0, 1], ids=["local", "global"])
def test_attention_equals_the_loop(small: MarinMoEConfig, layer: int, dtype: torch.dtype) -> None:
    module, x = Attention(small, layer), draw(*SEGMENTS.shape, small.d_model)
    weights = fill(module)
    found = module.to(dtype)(x.to(dtype), positions(small, SEGMENTS, dtype))
    expected = np.stack(
        [
            references.attention(
                row,
                segments,
                weights,
                heads=small.n_heads,
                head_dim=small.head_dim,
                kv_heads=3 if layer == 0 else 2,
                window=5 if layer == 0 else None,
                rotary=4,
                theta=10000.0,
                qk_mult=1.3,
                eps=1e-6,
            )
            for row, segments in zip(x.numpy(), SEGMENTS.numpy(), strict=True)
        ]
    )
    off = np.abs(found.detach().double().numpy() - expected).max() / np.abs(expected).max()
    assert off < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize(("capacity_factor", "group"), [(None, 2), (0.7, 2), (1.15, 2), (1.15, 1)])
def test_latent_moe_equals_the_loop(
    small: MarinMoEConfig, capacity_factor: float | None, group: int, dtype: torch.dtype
) -> None:
    """Two sequences that fill the experts together, or each by itself."""
    config = small.model_copy(update={"capacity_factor": capacity_factor, "capacity_group_sequences": group})
    module, x = LatentMoE(config), draw(34, small.d_model)
    weights = fill(module)
    module.to(dtype).train()
    y, routing = module(x.to(dtype))
    capacity = None
    if capacity_factor is not None:
        capacity = expert_capacity(17 * group, config.top_k, config.n_experts, capacity_factor)
    expected, dropped = references.latent_moe(x.numpy(), weights, 2, 2.5, 1e-5, capacity, 17 * group)
    assert np.abs(y.detach().double().numpy() - expected).max() / np.abs(expected).max() < TOLERANCE[dtype]
    assert routing.drop_fraction.item() == pytest.approx(dropped / (2 * len(x)), abs=1e-6)
    assert (dropped > 0) == (capacity_factor is not None)
    assert module.eval()(x.to(dtype))[1].drop_fraction == 0


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
def test_routing_equals_the_loop(small: MarinMoEConfig, dtype: torch.dtype) -> None:
    """Selection sees the bias, the weights do not; statistics as the public run logs them."""
    module, x = LatentMoE(small), draw(34, small.d_model)
    weights = fill(module)
    routing = module.to(dtype)(x.to(dtype))[1]
    logits = np.stack([references.matvec(weights["router.weight"], row) for row in x.numpy()])
    chosen, combine, margins = references.route(logits, weights["router.bias"], 2, 2.5)
    assert routing.selected.tolist() == chosen
    unbiased = references.route(logits, np.zeros(small.n_experts), 2, 2.5)[0]
    assert chosen != unbiased
    tolerance = {"rtol": 0, "atol": TOLERANCE[dtype] * 10}
    np.testing.assert_allclose(routing.combine.detach(), combine, **tolerance)
    np.testing.assert_allclose(routing.combine.detach().sum(-1), 2.5, rtol=1e-6)  # the published 1e-9 shows
    np.testing.assert_allclose(routing.margins, margins, **tolerance)
    share = [sum(row.count(e) for row in chosen) / 68 for e in range(small.n_experts)]
    assert routing.entropy.item() == pytest.approx(-sum(f * np.log(f + 1e-6) for f in share), rel=1e-5)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    balance = small.n_experts * sum(2 * f * p for f, p in zip(share, softmax.mean(0), strict=True))
    assert routing.load_balancing_loss.item() == pytest.approx(balance, rel=1e-5)
    z = np.mean([np.log(np.exp(row).sum()) ** 2 for row in logits])
    assert routing.router_z_loss.item() == pytest.approx(z, rel=1e-5)


@pytest.mark.parametrize("training", [False, True], ids=["dropless", "with drops"])
def test_nothing_before_a_token_depends_on_it(small: MarinMoEConfig, training: bool) -> None:
    """In training, too: a full expert turns later tokens away, never earlier ones."""
    config = small.model_copy(update={"capacity_factor": 0.5})
    model = model_of(config).train(training)
    ids = torch.randint(config.vocab_size, SEGMENTS.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = model(ids, SEGMENTS)[0].flatten(0, 1)
        for place in (0, 2, 3, 9, 10, 16, 17, 25, 33):
            changed = ids.clone()
            changed.view(-1)[place] = (changed.view(-1)[place] + 7) % config.vocab_size
            after = model(changed, SEGMENTS)[0].flatten(0, 1)
            torch.testing.assert_close(after[:place], before[:place], rtol=0, atol=1e-10)
            assert (after[place] - before[place]).abs().max() > 1e-3


def test_no_document_of_a_pack_depends_on_another(small: MarinMoEConfig) -> None:
    """Without drops. In training, capacity lets documents compete for the same experts: they do couple there."""
    config = small.model_copy(update={"capacity_factor": 0.5})
    model = model_of(config)
    ids = torch.randint(config.vocab_size, SEGMENTS.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before, competing = model(ids, SEGMENTS)[0], model.train()(ids, SEGMENTS)[0]
        coupled = False
        for document in range(3):
            inside = (document == SEGMENTS) & (torch.arange(2)[:, None] == 0)
            changed = torch.where(inside, (ids + 11) % config.vocab_size, ids)
            after = model.eval()(changed, SEGMENTS)[0]
            torch.testing.assert_close(after[~inside], before[~inside], rtol=0, atol=1e-10)
            assert (after[inside] - before[inside]).abs().amax(-1).min() > 1e-3
            other = model.train()(changed, SEGMENTS)[0]
            coupled = coupled or bool((other[~inside] - competing[~inside]).abs().max() > 1e-3)
    assert coupled


def test_a_window_of_one_sees_only_the_token_itself(small: MarinMoEConfig) -> None:
    """Then the output is the own value, which XSA removes: the branch is silent up to XSA's epsilon."""
    module = Attention(small.model_copy(update={"sliding_window": 1}), layer=0)
    fill(module)
    config = module.config
    x = draw(*SEGMENTS.shape, config.d_model)
    assert module(x, positions(config, SEGMENTS, torch.float64)).abs().max() < 1e-4
    assert module(x, positions(small, SEGMENTS, torch.float64)).abs().max() > 1e-1


@pytest.mark.parametrize("qb_bins", [None, 10_000])
def test_router_biases_even_the_load_of_every_layer(small: MarinMoEConfig, qb_bins: int | None) -> None:
    model = model_of(small.model_copy(update={"qb_bins": qb_bins}))
    ids = torch.randint(small.vocab_size, (16, 17), generator=torch.Generator().manual_seed(1))
    segments = torch.zeros_like(ids)
    with torch.no_grad():
        before = model(ids, segments)[1]
        model.set_router_biases(before)
        after = model(ids, segments)[1]
    # only of the first layer is the input unchanged by the others' biases
    overload = [
        torch.bincount(routing[0].selected.flatten(), minlength=7).max() / (16 * 17 * 2 / 7)
        for routing in (before, after)
    ]
    assert overload[0] > 1.3
    assert overload[1] - 1 < (overload[0] - 1) / 2
    entropies = torch.stack([torch.stack([r.entropy for r in routing]) for routing in (before, after)])
    assert (entropies[1] > entropies[0]).all()


@pytest.mark.parametrize("qb_bins", [None, 100])
def test_a_batch_with_non_finite_activations_leaves_the_router_biases_alone(
    small: MarinMoEConfig, qb_bins: int | None
) -> None:
    model = model_of(small.model_copy(update={"qb_bins": qb_bins}))
    ids = torch.arange(34).view(2, 17)
    before = [block.mlp.router.bias.clone() for block in model.model.layers]
    embedding = model.model.embed_tokens.weight.detach().clone()
    with torch.no_grad():
        model.model.embed_tokens.weight[3] = float("nan")
        model.set_router_biases(model(ids, SEGMENTS)[1])
        for block, bias in zip(model.model.layers, before, strict=True):
            assert torch.equal(block.mlp.router.bias, bias)
        model.model.embed_tokens.weight.copy_(embedding)
        model.set_router_biases(model(ids, SEGMENTS)[1])
    for block, bias in zip(model.model.layers, before, strict=True):
        assert block.mlp.router.bias.isfinite().all()
        assert not torch.equal(block.mlp.router.bias, bias)


def test_the_same_seed_draws_the_same_model(small: MarinMoEConfig) -> None:
    models = [MarinMoE(small) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        model.initialise(seed)
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["lm_head.weight"], states[2]["lm_head.weight"])
