"""Plans and counts against the published ladder, and against a model that is really built."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.configuration import InputError
from replicas.cli import app
from replicas.count import count, count_built
from replicas.plan import plan, shrink
from replicas.published import Published, load_published

LADDER = Path(__file__).parents[2] / "logs" / "published" / "marin" / "marin_ladder_config.csv"
ACTIVE = {512: 20840448, 768: 60555264, 1024: 162004992, 1536: 481296384, 2048: 1170735104, 6144: 22762487808}


@pytest.fixture(scope="module")
def marin() -> Published:
    return load_published("marin-535b")


@pytest.fixture(scope="module")
def ladder() -> list[dict[str, str]]:
    with LADDER.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_full_run_counts(marin: Published) -> None:
    document = count(marin)
    assert document["total_params"] == 535305388032
    assert document["active_params"] == 22762487808
    assert document["train_flops_per_step"] == 6690294608796057600
    assert document["tokens_per_step"] == 46137344
    assert document["embedding_params"] == document["lm_head_params"] == 128256 * 6144


@pytest.mark.parametrize(("width", "active"), ACTIVE.items())
def test_active_parameters_of_the_rungs(marin: Published, width: int, active: int) -> None:
    assert count(marin, width)["active_params"] == active


@pytest.mark.parametrize("width", [64, 512, 1536, 6144])
def test_the_built_model_has_the_counted_matrices(marin: Published, width: int) -> None:
    config = shrink(marin, width).config
    formula = marin.architecture.count_parameters(config)
    built = count_built(marin, config)
    assert sum(built["counted"].values()) == formula.total
    assert sum(built["apart"].values()) == formula.other
    assert built["counted"]["embedding"] == formula.embedding
    experts = built["counted"].pop("experts")
    dense = sum(built["counted"].values()) - formula.embedding - formula.lm_head
    assert dense + experts * config.top_k // config.n_experts == formula.active


def test_built_full_model_by_group(marin: Published) -> None:
    """Each group from its own published shape: 48 layers, 48 + 12 heads of 128, 384 experts, two shared."""
    d, half = 6144, 3072
    assert count_built(marin, marin.model) == {
        "counted": {
            "embedding": 128256 * d,
            "lm_head": 128256 * d,
            "attention": 48 * (2 * d * 48 * 128 + 2 * d * 12 * 128),
            "router": 48 * d * 384,
            "experts": 48 * 384 * 3 * half * half,
            "latent": 48 * 2 * d * half,
            "shared_experts": 48 * 2 * 3 * d * half,
        },
        "apart": {
            "gated_norm": (48 * 2 + 2) * 2 * d * 128,
            "head_gate": 48 * d * 48,
            "norm": (48 * 2 + 2) * d + 48 * half,
            "convolution": 48 * 4 * (12 * 128 + d + d),
        },
    }


def test_every_published_rung(marin: Published, ladder: list[dict[str, str]]) -> None:
    assert len(ladder) == 5
    for row in ladder:
        width = int(row["hidden"])
        document, counted = plan(marin, width).to_json(), count(marin, width)
        exact = {
            "layers": "layers",
            "heads": "q_heads",
            "kv_heads_local": "local_kv_heads",
            "kv_heads_global": "global_kv_heads",
            "experts": "experts",
            "top_k": "top_k",
            "batch_sequences": "batch_seqs",
            "seq_len": "seq_len",
            "steps": "steps",
            "tokens": "tokens",
        }
        for ours, theirs in exact.items():
            assert document[ours] == int(row[theirs]), (width, ours)
        for ours, theirs in {
            "muonh_lr": "peak_muonh_lr",
            "adam_lr": "peak_adam_lr",
            "eps": "adam_eps",
        }.items():
            assert document[ours] == pytest.approx(float(row[theirs]), rel=5e-5), (width, ours)
        assert document["beta2"] == pytest.approx(float(row["beta2"]), abs=5e-6)
        assert counted["total_params"] == int(row["total_params_matrices_plus_embed"])
        assert counted["active_params"] == int(row["active_params_nonembed"])
        assert counted["train_flops_per_step"] == pytest.approx(
            float(row["flops_per_step_no_lm_head"]), rel=1e-12
        )
        config = plan(marin, width).config
        shape = (config.latent_dim, config.expert_width, config.shared_width, config.sliding_window)
        assert shape == tuple(
            int(row[k]) for k in ("latent_dim", "expert_width", "shared_width", "sliding_window")
        )


def test_d1536_as_published(marin: Published) -> None:
    document = plan(marin, 1536).to_json()
    assert (document["layers"], document["heads"], document["batch_sequences"]) == (16, 12, 6144)
    assert (document["steps"], document["beta1"], document["beta2"]) == (15128, 0.9, 0.95)
    assert document["muonh_lr"] == pytest.approx(0.0148894, abs=5e-8)
    assert document["adam_lr"] == pytest.approx(0.00343602, abs=5e-9)
    assert document["eps"] == pytest.approx(1.1901e-15, abs=5e-20)


def test_full_width_changes_nothing(marin: Published) -> None:
    full = plan(marin, 6144)
    assert full.config == marin.model
    assert full.changed == ()
    assert (full.steps, full.tokens, full.warmup_steps) == (390251, 18005144633344, 3902)


def test_a_width_off_the_ladder_states_its_batch_rule(marin: Published) -> None:
    small = plan(marin, 64)
    changes = {change.name: change for change in small.changed}
    assert "as many steps as the nearest published rung" in changes["batch in sequences"].why
    assert small.steps == pytest.approx(plan(marin, 768).steps, rel=0.1)  # the batch is whole sequences


def test_a_budget_is_rounded_to_steps_and_reported(marin: Published) -> None:
    planned = plan(marin, 1536, tokens=10**9)
    assert planned.steps == 40
    assert planned.tokens == 40 * 6144 * 4096
    change = next(c for c in planned.changed if c.name == "tokens / active parameter")
    assert (change.published, change.here) == ("791", "2.092")


def test_budget_as_a_multiple_and_overrides(marin: Published) -> None:
    shape = {"n_experts": 16, "top_k": 2, "vocab_size": 512, "seq_len": 128}
    planned = plan(marin, 64, batch_sequences=8, tokens_per_active_param=20, **shape)
    active = marin.architecture.count_parameters(planned.config).active
    assert abs(planned.tokens - 20 * active) <= planned.tokens_per_step / 2
    assert planned.config.n_experts == 16


@pytest.mark.parametrize(
    ("width", "arguments", "message"),
    [
        (100, {}, "width 100 is not a multiple of 16"),
        (0, {}, "width 0"),
        (64, {"tokens": 0}, "tokens is 0"),
        (64, {"batch_sequences": -1}, "batch_sequences is -1"),
        (64, {"n_experts": 8, "top_k": 8}, r"top_k \(8\) must be below n_experts"),
        (64, {"experts": 8}, "experts"),
    ],
)
def test_impossible_plans(marin: Published, width: int, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(marin, width, **arguments)


def test_command_line_prints_one_json_document() -> None:
    run = CliRunner().invoke(app, ["count", "marin-535b", "--width", "512", "--json"])
    assert run.exit_code == 0
    keys = {"run", "width", "total_params", "active_params", "embedding_params", "lm_head_params"}
    keys |= {"other_params", "train_flops_per_token", "train_flops_per_step", "tokens_per_step"}
    assert keys <= set(json.loads(run.stdout))
    run = CliRunner().invoke(app, ["plan", "marin-535b", "--width", "64", "--tokens", "1000000", "--json"])
    document = json.loads(run.stdout)
    assert {"ratios_kept", "ratios_changed", "kv_heads_global", "warmup_steps", "adam_lr"} <= set(document)
    assert set(document["ratios_changed"][0]) == {"name", "published", "here", "why"}


def test_command_line_tables_show_the_same_numbers() -> None:
    run = CliRunner().invoke(app, ["count", "marin-535b", "--build"])
    assert "535,305,388,032" in run.stdout
    assert "521,838,526,464" in run.stdout  # the experts, from the built model
    run = CliRunner().invoke(app, ["plan", "marin-535b", "--width", "1536"])
    assert "15,128" in run.stdout
