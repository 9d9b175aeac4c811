"""The optimizer against the published code's own results, naive references, and its promises."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from experiments.configuration import InputError
from replicas.heuristics import Hyperparameters
from replicas.optimizers.groups import build_optimizer, parameter_groups
from replicas.optimizers.hyperball import hyperball_step
from replicas.optimizers.hyperball_adam import HyperballAdam, weight_decay
from replicas.optimizers.newton_schulz import COEFFICIENTS, newton_schulz
from replicas.plan import plan
from replicas.published import load_published

GOLDEN = Path(__file__).parents[1] / "golden" / "golden_optimizer.npz"
BETAS = {"beta1": 0.9, "beta2": 0.95, "eps": 1.2e-15}


def optimizer_of(kind: str, *parameters: Tensor, **options: Any) -> HyperballAdam:
    names = [(f"p{i}", p) for i, p in enumerate(parameters)]
    return HyperballAdam([{"params": names, "kind": kind}], **{"precision": "float64", **BETAS, **options})


@pytest.mark.parametrize("turned", [False, True], ids=["as stored", "transposed"])
@pytest.mark.parametrize(
    ("shape", "kind"),
    [(s, k) for s in ("square", "wide", "tall", "experts") for k in ("muonh", "adamh", "adam")]
    + [("vector", "adam")],
)
def test_three_steps_equal_the_published_code(shape: str, kind: str, turned: bool) -> None:
    """The file stores [in, out]; the rules must not care, so both orientations are stepped."""
    golden = np.load(GOLDEN)

    def tensor(values: np.ndarray) -> Tensor:
        t = torch.tensor(values)
        return t.mT.contiguous() if turned and t.ndim > 1 else t

    parameter = nn.Parameter(tensor(golden[f"{shape}/param"]))
    betas = {name: float(golden[name]) for name in BETAS}
    optimizer = optimizer_of(kind, parameter, **betas)
    for step, lr in enumerate(golden["lrs"]):
        optimizer.param_groups[0]["lr"] = float(lr)
        parameter.grad = tensor(golden[f"{shape}/grads"][step])
        optimizer.step()
        expected = tensor(golden[f"{shape}/{kind}"][step])
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-10)


def naive_newton_schulz(matrix: np.ndarray) -> np.ndarray:
    """Scalar loops over the equation, float64."""
    X = [[float(x) / (float(np.sqrt((matrix**2).sum())) + 1e-8) for x in row] for row in matrix]

    def times(P: list[list[float]], Q: list[list[float]]) -> list[list[float]]:
        return [
            [sum(p * q for p, q in zip(row, col, strict=True)) for col in zip(*Q, strict=True)] for row in P
        ]

    for a, b, c in COEFFICIENTS["quintic"]:
        A = times(X, [list(col) for col in zip(*X, strict=True)])
        AA = times(A, A)
        B = [[b * x + c * y for x, y in zip(r, s, strict=True)] for r, s in zip(A, AA, strict=True)]
        BX = times(B, X)
        X = [[a * x + y for x, y in zip(r, s, strict=True)] for r, s in zip(X, BX, strict=True)]
    return np.array(X)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), batch=st.integers(1, 3), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_newton_schulz_equals_naive_loops(rows: int, columns: int, batch: int, seed: int) -> None:
    matrices = torch.randn(
        batch, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    expected = np.stack([naive_newton_schulz(m.numpy()) for m in matrices])
    ours = newton_schulz(matrices, dtype=torch.float64)
    np.testing.assert_allclose(ours, expected, rtol=1e-8, atol=1e-9)
    single = newton_schulz(matrices.float(), dtype=torch.float32)
    np.testing.assert_allclose(single, expected, rtol=1e-3, atol=1e-4)


def test_newton_schulz_flattens_the_spectrum_in_every_precision() -> None:
    """Singular values end near 1 (Muon's coefficients oscillate there on purpose), also in bfloat16."""
    matrices = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    for dtype, slack in ((torch.float32, 0.3), (torch.bfloat16, 0.35)):
        values = torch.linalg.svdvals(newton_schulz(matrices, dtype=dtype))
        assert (values - 1).abs().max() < slack


def test_newton_schulz_splits_into_parts_without_a_trace() -> None:
    """More matrices than fit one cached part give what each gives alone."""
    matrices = torch.randn(300, 32, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = torch.stack([newton_schulz(m, dtype=torch.float64) for m in matrices])
    torch.testing.assert_close(newton_schulz(matrices, dtype=torch.float64), alone, rtol=1e-9, atol=1e-10)


@given(lr=st.floats(0, 0.05), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_hyperball_step_by_hand(lr: float, scale: float, seed: int) -> None:
    """One radius per matrix; the scale of the direction is irrelevant."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    U = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    ours = hyperball_step(W, scale * U, lr)
    for w, u, got in zip(W.numpy(), U.numpy(), ours.numpy(), strict=True):
        radius = np.sqrt((w**2).sum())
        moved = w - lr * radius * u / np.sqrt((u**2).sum())
        np.testing.assert_allclose(got, moved * radius / np.sqrt((moved**2).sum()), rtol=1e-10, atol=1e-12)


def test_zero_direction_and_zero_matrix_stay_where_they_are() -> None:
    W = torch.randn(2, 4, 4)
    torch.testing.assert_close(hyperball_step(W, torch.zeros_like(W), 0.02), W)
    assert not hyperball_step(torch.zeros_like(W), W, 0.02).any()


@pytest.mark.parametrize("kind", ["muonh", "adamh"])
def test_matrix_norms_are_constant_over_200_steps(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    stacks = [
        nn.Parameter(torch.randn(s, generator=generator) * 0.1) for s in ((4, 12, 20), (16, 16), (30, 8))
    ]
    optimizer = optimizer_of(kind, *stacks, lr=0.015, precision="float32")
    before = [p.detach().clone() for p in stacks]
    for _ in range(200):
        for p in stacks:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    for p, old in zip(stacks, before, strict=True):
        new, norm = p.detach().norm(dim=(-2, -1)), old.norm(dim=(-2, -1))
        assert ((new / norm - 1).abs() < 1e-4).all()
        assert (p.detach() - old).norm() > 0.1 * old.norm()  # they did move


def test_adam_is_the_one_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = nn.Parameter(torch.randn(7, 3, generator=generator, dtype=torch.float64))
    theirs = nn.Parameter(ours.detach().clone())
    a = optimizer_of("adam", ours, lr=0.01, eps=1e-8)
    b = torch.optim.Adam([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(20):
        ours.grad = torch.randn(7, 3, generator=generator, dtype=torch.float64)
        theirs.grad = ours.grad.clone()
        a.step()
        b.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_weight_decay_starts_late_is_decoupled_and_falls_to_zero() -> None:
    """With no gradient the step is -lr * wd_t * p alone, wd_t = .02 (1 - t / 390251) from step 58,014 on."""
    p = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = optimizer_of("adam", p, lr=0.5)
    group = optimizer.param_groups[0]
    group |= {"weight_decay": 0.02, "weight_decay_start": 58_014, "weight_decay_steps": 390_251}
    p.grad = torch.zeros_like(p)
    for updates, decay in (
        (58_013, 0.0),
        (58_014, 0.02 * (1 - 58_014 / 390_251)),
        (390_251, 0.0),
        (400_000, 0.0),
    ):
        group["updates"] = updates
        p.data.fill_(1)
        assert weight_decay(group) == pytest.approx(decay, abs=1e-15)
        optimizer.step()
        torch.testing.assert_close(p.detach(), torch.full_like(p, 1 - 0.5 * decay), rtol=0, atol=1e-15)


def small_study() -> tuple[nn.Module, HyperballAdam]:
    marin = load_published("marin-535b")
    planned = plan(marin, 32, n_experts=8, top_k=2, vocab_size=64, seq_len=32)
    torch.manual_seed(0)
    model = marin.architecture.Model(planned.config)
    model.initialise(0)
    recipe, h = marin.recipe.optimizer, planned.hyperparameters
    return model, build_optimizer(model, recipe, h, planned.steps, precision="float32")


def random_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def snapshot(model: nn.Module, optimizer: HyperballAdam) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return copy.deepcopy(dict(model.named_parameters())), copy.deepcopy(optimizer.state_dict()["state"])


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.experts.up_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.2.mlp.router.weight",
    ],
)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_one_non_finite_gradient_entry_changes_nothing(name: str, poison: float) -> None:
    model, optimizer = small_study()
    random_gradients(model, 1)
    optimizer.step()
    parameters, state = snapshot(model, optimizer)
    random_gradients(model, 2)
    gradient = model.get_parameter(name).grad
    assert gradient is not None
    gradient.view(-1)[gradient.numel() // 2] = poison
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert optimizer.last_skip == f"non-finite gradient of {name}"
    torch.testing.assert_close(dict(model.named_parameters()), parameters, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)

    twin, other = small_study()  # the refused step must leave no trace in the next one
    for seed in (1, 3):
        random_gradients(twin, seed)
        other.step()
    random_gradients(model, 3)
    optimizer.step()
    assert optimizer.last_skip is None
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "moment"),
    [("lm_head.weight", "exp_avg"), ("model.layers.0.self_attn.q_proj.weight", "momentum")],
)
def test_a_non_finite_update_from_finite_gradients_changes_nothing(name: str, moment: str) -> None:
    model, optimizer = small_study()
    random_gradients(model, 1)
    optimizer.step()
    optimizer.state[model.get_parameter(name)][moment].view(-1)[0] = float("inf")
    parameters, state = snapshot(model, optimizer)
    random_gradients(model, 2)
    optimizer.step()
    assert optimizer.last_skip == f"non-finite update of {name}"
    torch.testing.assert_close(dict(model.named_parameters()), parameters, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)


def test_a_gradient_whose_square_overflows_is_refused() -> None:
    """Finite in float32, but its square is not: Adam's second moment would stay infinite for good."""
    model, optimizer = small_study()
    random_gradients(model, 1)
    gradient = model.get_parameter("model.norm.weight").grad
    assert gradient is not None
    gradient[0] = 1e30
    optimizer.step()
    assert optimizer.last_skip == "non-finite gradient of model.norm.weight"


def test_resuming_from_the_state_dict_is_bit_exact(tmp_path: Path) -> None:
    model, optimizer = small_study()
    for seed in range(3):
        random_gradients(model, seed)
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    resumed, other = small_study()
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    for seed in range(3, 6):
        for m, o in ((model, optimizer), (resumed, other)):
            random_gradients(m, seed)
            o.step()
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(resumed.named_parameters()), rtol=0, atol=0
    )
    assert other.param_groups[0]["updates"] == 6


def test_published_masks_put_every_parameter_where_the_recipe_says() -> None:
    model, optimizer = small_study()
    group_of = {name: group["name"] for group in optimizer.param_groups for name in group["param_names"]}
    assert set(group_of) == {name for name, _ in model.named_parameters()}
    assert group_of["lm_head.weight"] == "adamh"
    assert group_of["model.embed_tokens.weight"] == "adam"
    layer = "model.layers.0."
    for name in (
        "self_attn.o_proj",
        "mlp.experts.down_proj",
        "mlp.latent_up_proj",
        "shared_experts.1.up_proj",
        "mlp_gated_norm.down_proj",
    ):
        assert group_of[f"{layer}{name}.weight"] == "muonh"
    for name in ("self_attn.attn_gate", "mlp.router"):
        assert group_of[f"{layer}{name}.weight"] == "adam_decayed"
    for name in ("mlp.latent_norm", "self_attn.sconv_k", "sconv_mlp", "input_layernorm"):
        assert group_of[f"{layer}{name}.weight"] == "adam"


def test_weight_decay_starts_at_the_published_fraction_of_the_run() -> None:
    marin = load_published("marin-535b")
    model, _ = small_study()
    h = Hyperparameters(0.01, 0.01, 0.002, 0.9, 0.95, 1e-15)
    optimizer = build_optimizer(model, marin.recipe.optimizer, h, 390_251)
    decayed = [g for g in optimizer.param_groups if g["weight_decay"]]
    assert [(g["name"], g["weight_decay_start"], g["weight_decay_steps"]) for g in decayed] == [
        ("adam_decayed", 58_014, 390_251)
    ]
    assert optimizer.param_groups[0]["precision"] == "bfloat16"


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"adam": ["weight"]}, r"`bias` must match exactly one mask; matching: none"),
        ({"adam": ["*"], "muonh": ["weight"]}, r"`weight` .* matching: `\*` \(adam\), `weight` \(muonh\)"),
        ({"adam": ["*"], "sgd": []}, None),
        ({"adamh": ["*"]}, r"stepped by `adamh`, which has no learning rate"),
    ],
)
def test_masks_that_do_not_partition_the_parameters(masks: dict[str, list[str]], message: str | None) -> None:
    model, rates = nn.Linear(3, 2), {"muonh": 0.01, "adam": 0.001}
    if message is None:
        assert [g["name"] for g in parameter_groups(model, masks, rates)] == ["adam"]
        return
    with pytest.raises(InputError, match=message):
        parameter_groups(model, masks, rates)


def test_what_the_optimizer_cannot_step_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="p0 is no matrix"):
        optimizer_of("muonh", nn.Parameter(torch.ones(3)))
    with pytest.raises(ValueError, match="float16"):
        optimizer_of("adam", nn.Parameter(torch.ones(3, dtype=torch.float16)))
    with pytest.raises(ValueError, match="unknown kind 'muon'; allowed: muonh, adamh, adam"):
        optimizer_of("muon", nn.Parameter(torch.ones(3, 3)))


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned() -> None:
    p = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    optimizer = optimizer_of("adam", p, lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4
    torch.testing.assert_close(p.detach(), torch.full_like(p, 0.9))
