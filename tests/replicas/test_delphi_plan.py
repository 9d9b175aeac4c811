"""Plans and counts of the dense family, against the registry of its released runs; nothing of an MoE is assumed."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments.configuration import InputError
from replicas.cli import app
from replicas.count import count, count_built
from replicas.heuristics import delphi
from replicas.optimizers.clipping import clip_by_group_norm
from replicas.optimizers.groups import build_optimizer
from replicas.plan import plan, shrink
from replicas.published import Published, load_published, read_published

# width: layers, sequences, steps, AdamH and Adam rate, beta2, eps; experiments/delphi_models.py@5afac0bd, whose
# steps for 1152, 1408, 1792 and 2048 are those of the last checkpoint: not compared.
RUNS: dict[int, tuple[int, int, int | None, float, float, float, float]] = {
    1024: (11, 8, 37_335, 0.0027599905274620106, 0.00033154735825338737, 0.9999, 3.6604122149949323e-08),
    1152: (12, 16, None, 0.003011461785505323, 0.000304311605183897, 0.9999, 3.988017477238883e-08),
    1408: (15, 16, None, 0.002820610414485248, 0.0002728525996258053, 0.9999, 4.447822749954927e-08),
    1536: (16, 32, 38_014, 0.0036221806679679214, 0.0003285714083231954, 0.9999, 3.693565445007487e-08),
    1792: (18, 64, None, 0.004089070809779834, 0.0003191861039276992, 0.9999, 3.802170536455748e-08),
    2048: (21, 64, None, 0.003694876216643079, 0.0002695686680789442, 0.9999, 4.502006886217921e-08),
    2304: (23, 128, 35_510, 0.004878221521523273, 0.00033996075743610645, 0.99980001, 3.569823791288878e-08),
    2560: (26, 512, 22_057, 7.425e-3, 4.314e-4, 0.99920, 2.81e-8),
    3840: (
        37,
        1024,
        38_235,
        7.231797280729413e-3,
        3.276222099351447e-4,
        0.9984011994401821,
        3.70426657045089e-8,
    ),
}


@pytest.fixture(scope="module")
def dense() -> Published:
    return load_published("delphi")


@pytest.mark.parametrize("width", RUNS)
def test_every_released_run(dense: Published, width: int) -> None:
    layers, sequences, steps, adamh, adam, beta2, eps = RUNS[width]
    planned = plan(dense, width)
    h, rough = planned.hyperparameters, 2e-3 if width == 2560 else 2e-5  # that run's are known to four digits
    assert (planned.config.n_layers, planned.batch_sequences) == (layers, sequences)
    assert steps is None or planned.steps == steps
    assert (h.muonh, h.beta1) == (None, 0.9)
    assert h.adamh == pytest.approx(adamh, rel=rough)
    assert h.adam == pytest.approx(adam, rel=rough)
    assert h.eps == pytest.approx(eps, rel=rough)
    assert h.beta2 == pytest.approx(beta2, abs=5e-6)


def test_the_largest_run(dense: Published) -> None:
    full = plan(dense, 5376)
    assert full.config == dense.model
    assert (full.changed, full.batch_sequences) == ((), 2048)
    assert (full.steps, full.tokens, full.warmup_steps) == (74_884, 628_172_521_472, 7488)
    counted = count(dense)
    assert counted["total_params"] == 24_963_098_112
    lm_head = 6 * counted["lm_head_params"] * full.tokens  # which the team's budget counts
    assert counted["train_flops_per_step"] * full.steps + lm_head == pytest.approx(1e23, rel=3e-5)


def test_rates_are_capped() -> None:
    h = delphi(10**6, 64, 4096 * 4096)
    assert (h.adamh, h.adam, h.beta2) == (0.01, 0.01, pytest.approx(0.9999**64))
    assert delphi(10**6, 64, 4096 * 2**17).beta2 == 0.9


@pytest.mark.parametrize("width", [64, 512, 5376])
def test_the_built_model_has_what_is_counted(dense: Published, width: int) -> None:
    config = shrink(dense, width).config
    formula, built = dense.architecture.count_parameters(config), count_built(dense, config)
    assert sum(built["counted"].values()) == formula.total
    assert (built["apart"], formula.other) == ({}, 0)
    assert (
        built["counted"]["embedding"] == built["counted"]["lm_head"] == formula.embedding == formula.lm_head
    )


def test_keys_that_do_not_apply_are_null(dense: Published) -> None:
    document = plan(dense, 512).to_json()
    for key in ("kv_heads_local", "kv_heads_global", "experts", "top_k", "muonh_lr"):
        assert document[key] is None, key
    assert (document["layers"], document["heads"], document["seq_len"]) == (6, 4, 4096)
    assert document.keys() == plan(load_published("marin-535b"), 512).to_json().keys()


def test_command_line() -> None:
    run = CliRunner().invoke(app, ["count", "delphi", "--build", "--json"])
    assert run.exit_code == 0
    assert json.loads(run.stdout)["counted"]["mlp"] == 51 * 3 * 5376 * 21504
    assert CliRunner().invoke(app, ["count", "delphi"]).stdout.count("24,963,098,112") == 1
    run = CliRunner().invoke(app, ["plan", "delphi", "--width", "512", "--json"])
    assert json.loads(run.stdout)["muonh_lr"] is None
    table = CliRunner().invoke(app, ["plan", "delphi", "--width", "512"])
    assert "adamh_lr" in table.stdout


def test_every_field_is_cited(dense: Published) -> None:
    assert {f"model.{name}" for name in type(dense.model).model_fields} <= dense.citations.keys()
    assert "recipe.optimizer.max_grad_norm" in dense.citations
    assert load_published("marin-535b").recipe.optimizer.max_grad_norm is None


def test_settings_of_muonh_go_with_it(dense: Published, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "replicas" / "configurations" / "delphi.yaml"
    path = tmp_path / "delphi.yaml"
    added = "    momentum: {value: 0.9, source: s}\n    max_grad_norm:\n"
    path.write_text(shipped.read_text().replace("    max_grad_norm:\n", added))
    with pytest.raises(InputError, match=r"momentum, newton_schulz .* go with the group muonh"):
        read_published(path)


def test_the_optimizer_steps_every_matrix_on_its_sphere(dense: Published) -> None:
    config = shrink(dense, 64, vocab_size=64, seq_len=32).config
    model = dense.architecture.Model(config)
    model.initialise(0)
    planned = plan(dense, 64, tokens=10**6, batch_sequences=4, vocab_size=64, seq_len=32)
    optimizer = build_optimizer(model, dense.recipe.optimizer, planned.hyperparameters, planned.steps)
    kinds = {group["name"]: len(group["params"]) for group in optimizer.param_groups}
    assert kinds == {"adamh": 7 * config.n_layers + 1, "adam": 1 + 4 * config.n_layers + 1}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        assert not torch.equal(p, before[name]), name
        if name.endswith(("_proj.weight", "lm_head.weight")):
            assert float(p.detach().norm()) == pytest.approx(float(before[name].norm()), rel=1e-6), name


def test_gradients_are_clipped_group_by_group() -> None:
    large, small, alone = (torch.zeros(2, requires_grad=True) for _ in range(3))
    large.grad, small.grad, alone.grad = (
        torch.tensor([3.0, 0.0]),
        torch.tensor([0.0, 4.0]),
        torch.tensor([0.03, 0.04]),
    )
    optimizer = torch.optim.SGD([{"params": [large, small]}, {"params": [alone]}])
    clip_by_group_norm(optimizer, 0.1)
    torch.testing.assert_close(large.grad, torch.tensor([0.06, 0.0]))
    torch.testing.assert_close(small.grad, torch.tensor([0.0, 0.08]))
    torch.testing.assert_close(alone.grad, torch.tensor([0.03, 0.04]))


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_clipping_spreads_no_fault(fault: float) -> None:
    """Otherwise one bad gradient would be every gradient's, and the report would name the wrong parameter."""
    sound, bad = (torch.zeros(2, requires_grad=True) for _ in range(2))
    sound.grad, bad.grad = torch.tensor([3.0, 0.0]), torch.tensor([fault, 0.0])
    clip_by_group_norm(torch.optim.SGD([sound, bad]), 0.1)
    assert torch.equal(sound.grad, torch.tensor([3.0, 0.0]))
    zero = torch.zeros(2, requires_grad=True)
    zero.grad = torch.zeros(2)
    clip_by_group_norm(torch.optim.SGD([zero]), 0.1)
    assert torch.equal(zero.grad, torch.zeros(2))
