"""Configurations and weights under the public export's names, both ways."""

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.configuration import InputError
from replicas.models.delphi_export import config_to_export as delphi_to_export
from replicas.models.marin_moe import MarinMoE, MarinMoEConfig
from replicas.models.marin_moe_export import config_from_export, config_to_export
from replicas.models.portable import export_config, load_export, load_weights, read_weights, write_weights
from replicas.published import load_published

PUBLISHED = {
    "architectures": ["GrugMoeForCausalLM"],
    "model_type": "grug_moe",
    "vocab_size": 128256,
    "hidden_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 48,
    "num_key_value_heads": 12,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "sliding_window": 2048,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.0063788795384978605,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "num_experts": 384,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 3072,
    "shared_expert_intermediate_size": 3072,
    "num_shared_experts": 2,
    "latent_dim": 3072,
    "qk_mult": 1.3,
    "local_kv_heads": 12,
    "global_kv_heads": 6,
    "global_every": 4,
    "rope_fused": True,
    "sconv": True,
    "sconv_kernel": 4,
    "sconv_sites": ["k", "attn", "mlp"],
    "grugmoe_attention_mode": "production",
    "grugmoe_artifact_schema_version": 2,
}
"""The keys and values that the public code writes for the 535B run."""


def test_the_published_configuration_is_recognised(marin: MarinMoEConfig, small: MarinMoEConfig) -> None:
    constants = {name: getattr(marin, name) for name in ("gated_norm_rank", "qb_bins")}
    assert config_from_export(PUBLISHED, small.model_copy(update=constants)) == marin


def test_the_published_configuration_is_written_key_by_key(marin: MarinMoEConfig) -> None:
    ours = config_to_export(marin)
    assert {key: ours[key] for key in PUBLISHED} == PUBLISHED


@given(
    d_model=st.integers(1, 8192),
    init_scale=st.sampled_from([0.5, 0.02, 0.3333]),
    sconv_sites=st.lists(st.sampled_from(["k", "attn", "mlp"]), unique=True).map(tuple),
    rope_fraction=st.sampled_from([0.25, 0.5, 1.0]),
)
def test_round_trip(marin: MarinMoEConfig, small: MarinMoEConfig, **drawn: Any) -> None:
    config = MarinMoEConfig(**{**small.model_dump(), **drawn})
    text = json.dumps(config_to_export(config))
    family = marin.model_copy(update={"qb_bins": small.qb_bins})  # training's own: no key for it
    assert config_from_export(json.loads(text), family) == config


def test_keys_without_bearing_are_passed_over(marin: MarinMoEConfig) -> None:
    assert config_from_export({**PUBLISHED, "dtype": "bfloat16", "use_cache": True}, marin) == marin


def test_an_export_without_convolutions(marin: MarinMoEConfig) -> None:
    assert config_from_export({**PUBLISHED, "sconv": False}, marin).sconv_sites == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"model_type": "qwen3_moe"},
            "c.json: `model_type` is 'qwen3_moe'; this architecture has 'grug_moe' only",
        ),
        ({"rope_fused": False}, "`rope_fused` is False"),
        ({"tie_word_embeddings": True}, "`tie_word_embeddings` is True"),
        ({"num_key_value_heads": 6}, r"`num_key_value_heads` \(6\) must equal `local_kv_heads` \(12\)"),
        ({"num_experts_per_tok": 384}, r"top_k \(384\) must be below n_experts \(384\)"),
        ({"sconv_sites": ["v"]}, r"sconv_sites \['v'\] unknown"),
        ({"hidden_size": "6144"}, "`d_model`"),
    ],
)
def test_a_variant_that_this_is_not_is_refused(
    marin: MarinMoEConfig, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        config_from_export({**PUBLISHED, **change}, marin, "c.json")


def test_a_missing_shape_is_not_guessed(marin: MarinMoEConfig) -> None:
    export = {key: value for key, value in PUBLISHED.items() if key != "latent_dim"}
    with pytest.raises(InputError, match="no `latent_dim`"):
        config_from_export(export, marin)


def test_the_tensors_have_the_public_names(small: MarinMoEConfig) -> None:
    """Every name of the export and no other, for a layer and around the layers."""
    names = {name for name in MarinMoE(small).state_dict() if ".layers." not in name or ".layers.1." in name}
    gated = [f"{norm}.{way}_proj" for norm in ("attn_gated_norm", "mlp_gated_norm") for way in ("down", "up")]
    layer = [
        "input_layernorm",
        "post_attention_layernorm",
        *gated,
        *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "attn_gate", "sconv_k")),
        "sconv_attn",
        "sconv_mlp",
        "mlp.router",
        *(f"mlp.experts.{name}_proj" for name in ("gate", "up", "down")),
        *(f"mlp.latent_{name}" for name in ("down_proj", "up_proj", "norm")),
        *(f"shared_experts.{j}.{name}_proj" for j in (0, 1) for name in ("gate", "up", "down")),
    ]
    around = ["embed_tokens", "embed_norm", "norm"]
    around += [
        f"{norm}.{way}_proj" for norm in ("embed_gated_norm", "final_gated_norm") for way in ("down", "up")
    ]
    expected = {f"model.layers.1.{name}.weight" for name in layer} | {
        f"model.{name}.weight" for name in around
    }
    assert names == expected | {"model.layers.1.mlp.router.bias", "lm_head.weight"}


def test_weights_are_taken_over_whole_or_not_at_all(small: MarinMoEConfig) -> None:
    model, other = MarinMoE(small), MarinMoE(small).double()
    model.initialise(0)
    other.initialise(1)
    weights = other.state_dict()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lacking = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    bent = {**weights, "model.norm.weight": torch.ones(3)}
    for faulty, says in (
        (lacking, "x.safetensors: lacks tensor `lm_head.weight`;"),
        ({**weights, "a": torch.ones(1), "b": torch.ones(1)}, "has an unknown tensor `a` and 1 more"),
        (bent, r"`model.norm.weight` is \[3\], the configuration asks for \[22\]"),
    ):
        with pytest.raises(InputError, match=says):
            load_weights(model, faulty, "x.safetensors")
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    load_weights(model, weights)
    assert all(torch.equal(tensor, weights[name].float()) for name, tensor in model.state_dict().items())


RUN = load_published("marin-535b")
GOLDEN = Path(__file__).parents[2] / "golden" / "golden_block.npz"


def write_golden(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and configuration that the published code left, as a folder of one safetensors file."""
    golden = np.load(GOLDEN)
    prefix = "weight/"
    weights = {k.removeprefix(prefix): torch.from_numpy(golden[k]) for k in golden if k.startswith(prefix)}
    write_weights(folder, json.loads(str(golden["config"])), weights)
    return weights


def test_a_checkpoint_written_elsewhere_goes_through_unchanged(tmp_path: Path) -> None:
    """The published code's weights: loaded, written again, byte for byte the same file."""
    weights = write_golden(tmp_path / "theirs")
    model = load_export(tmp_path / "theirs", RUN)
    assert not model.training  # nothing is dropped
    write_weights(tmp_path / "ours", config_to_export(model.config), model.state_dict())
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() == (
        tmp_path / "theirs" / "model.safetensors"
    ).read_bytes()
    config, again = read_weights(tmp_path / "ours")
    assert config["dtype"] == "float32"
    assert again.keys() == weights.keys()
    for name, tensor in weights.items():
        assert again[name].dtype == tensor.dtype == torch.float32
        assert torch.equal(again[name], tensor), name
    assert load_export(tmp_path / "ours", RUN).config == model.config


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_precision_of_the_file_is_kept(small: MarinMoEConfig, tmp_path: Path, dtype: torch.dtype) -> None:
    model = MarinMoE(small)
    model.initialise(0)
    model = model.to(dtype)
    write_weights(tmp_path, config_to_export(small), model.state_dict())
    loaded = load_export(tmp_path, RUN, family=small)
    assert loaded.config == small
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == dtype
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_mixed_precision_is_not_rounded(small: MarinMoEConfig, tmp_path: Path) -> None:
    """A release may keep its routers in float32 beside bfloat16: all is loaded in float32."""
    model = MarinMoE(small)
    model.initialise(0)
    weights = {n: t if "router" in n else t.bfloat16() for n, t in model.state_dict().items()}
    write_weights(tmp_path, config_to_export(small), weights)
    loaded = load_export(tmp_path, RUN, family=small).state_dict()
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in weights.items())


def test_weights_in_several_files(tmp_path: Path) -> None:
    weights = write_golden(tmp_path)
    config, _ = read_weights(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    weight_map = {}
    for i, some in enumerate((names[::2], names[1::2]), start=1):
        part = f"model-0000{i}-of-00002.safetensors"
        write_weights(tmp_path / "part", config, {name: weights[name] for name in some})
        (tmp_path / "part" / "model.safetensors").rename(tmp_path / part)
        weight_map |= dict.fromkeys(some, part)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_export(tmp_path, RUN).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002.safetensors: no such file"):
        load_export(tmp_path, RUN)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret"}}))
    with pytest.raises(InputError, match="`weight_map` must name files of this folder"):
        load_export(tmp_path, RUN)


def test_a_faulty_folder_is_one_clear_error(tmp_path: Path) -> None:
    weights = write_golden(tmp_path)
    config, _ = read_weights(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for length in (0, 7, 100, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"model.safetensors: cut short or no safetensors file"):
            load_export(tmp_path, RUN)
    lacking = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    write_weights(tmp_path, config, lacking)
    with pytest.raises(InputError, match=r"model.safetensors: lacks tensor `lm_head.weight`"):
        load_export(tmp_path, RUN)
    write_weights(tmp_path, delphi_to_export(load_published("delphi").model), weights)
    with pytest.raises(InputError, match=r"config.json: `architectures` is .'Qwen3ForCausalLM'.; this arch"):
        load_export(tmp_path, RUN)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json: not valid JSON"):
        load_export(tmp_path, RUN)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config.json: expected a JSON object, found list"):
        load_export(tmp_path, RUN)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=r"config.json: no such file"):
        load_export(tmp_path, RUN)


def test_a_family_without_public_names_exports_its_own(small: MarinMoEConfig, tmp_path: Path) -> None:
    assert export_config("marin_moe", small) == config_to_export(small)
    fields = small.model_dump(mode="json")
    assert export_config("another", small) == {"architecture": "another", **fields}
    module = ModuleType("replicas.models.another")
    module.Config, module.Model = MarinMoEConfig, MarinMoE  # type: ignore[attr-defined]
    another = dataclasses.replace(RUN, architecture=module)
    model = MarinMoE(small)
    model.initialise(0)
    write_weights(tmp_path, export_config("another", small), model.state_dict())
    loaded = load_export(tmp_path, another)
    assert loaded.config == small
    assert all(torch.equal(loaded.state_dict()[name], t) for name, t in model.state_dict().items())
    with pytest.raises(InputError, match=r"config.json: no `hidden_size`"):
        load_export(tmp_path, RUN)
    write_weights(tmp_path, config_to_export(small), model.state_dict())
    with pytest.raises(InputError, match=r"config.json: `architecture` is None, not 'another'"):
        load_export(tmp_path, another)
