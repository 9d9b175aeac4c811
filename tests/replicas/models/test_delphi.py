"""The Delphi model against Hugging Face's Qwen 3, and against its released models' cards."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.configuration import InputError
from replicas.models.delphi import (
    Config,
    Model,
    count_parameters,
    rope_frequencies,
    shrink,
    train_flops_per_token,
)
from replicas.models.delphi_export import config_from_export, config_to_export
from replicas.models.portable import load_export, write_weights
from replicas.published import load_published

LLAMA3 = {"rope_factor": 8.0, "rope_low_frequency": 1.0, "rope_high_frequency": 4.0}
SHAPES: list[dict[str, Any]] = [
    {"d_model": 22, "n_layers": 3, "n_heads": 3, "head_dim": 8, "mlp_width": 37, "vocab_size": 53},
    {"d_model": 64, "n_layers": 2, "n_heads": 4, "head_dim": 16, "mlp_width": 256, "vocab_size": 300},
    {"d_model": 40, "n_layers": 1, "n_heads": 1, "head_dim": 6, "mlp_width": 11, "vocab_size": 7},
]
"""No two dimensions equal; a shape of the shrinking rule; the narrowest."""
ROPES = [{"rope_factor": 1.0}, LLAMA3, {**LLAMA3, "rope_factor": 3.0, "rope_original_seq_len": 40}]


@pytest.fixture(scope="module")
def published() -> Config:
    return load_published("delphi").model


def small(published: Config, **fields: Any) -> Config:
    return Config(**{**published.model_dump(), "seq_len": 64, **SHAPES[0], **fields})


def drawn(config: Config, seed: int = 0) -> Model:
    """A model whose norm gains are drawn too, so that none can be left out."""
    model = Model(config)
    model.initialise(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight"):
                p.uniform_(0.5, 1.5)
    return model.eval()


def peer(config: Config) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs the `peers` extra: transformers")
    exported = transformers.Qwen3Config(**config_to_export(config))
    return transformers.Qwen3ForCausalLM._from_config(exported, attn_implementation="eager").eval()


def tokens(config: Config, batch: int = 2, seq: int = 48) -> Tensor:
    return torch.randint(config.vocab_size, (batch, seq), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rope", ROPES, ids=["plain rope", "llama3 rope", "llama3 rope, short"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"d{shape['d_model']}")
def test_logits_are_those_of_qwen3(published: Config, shape: dict[str, Any], rope: dict[str, float]) -> None:
    config = small(published, **shape, **rope)
    ours, theirs = drawn(config), peer(config)
    theirs.load_state_dict(ours.state_dict())
    ids = tokens(config)
    with torch.no_grad():
        found, routings = ours(ids, torch.zeros_like(ids))
        expected = theirs(input_ids=ids).logits
    assert routings == []
    assert (found - expected).abs().max() < 1e-5 * max(1.0, float(expected.abs().max()))


def test_gradients_are_those_of_qwen3(published: Config) -> None:
    config = small(published, **LLAMA3)
    ours, theirs = drawn(config).double(), peer(config).double()
    theirs.load_state_dict(ours.state_dict())
    ids = tokens(config)
    logits, _ = ours(ids, torch.zeros_like(ids))
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    theirs(input_ids=ids, labels=ids).loss.backward()
    expected = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        grad, other = p.grad, expected[name].grad
        assert grad is not None
        assert (grad - other).abs().max() < 1e-5 * other.abs().max(), name


def test_parameters_are_those_of_qwen3(published: Config) -> None:
    config = small(published, d_model=24)
    theirs = {name: p.shape for name, p in peer(config).named_parameters()}
    assert {name: p.shape for name, p in Model(config).named_parameters()} == theirs
    assert count_parameters(config).total == sum(shape.numel() for shape in theirs.values())


@pytest.mark.parametrize(
    ("width", "layers", "heads", "parameters"),
    [
        (640, 7, 5, 210_054_272),  # huggingface.co/marin-community/delphi-2e19-210Mparams-18.2Btokens
        (896, 10, 7, 358_306_688),  # delphi-9e18-358Mparams-4.7Btokens
        (1280, 13, 10, 669_160_448),  # delphi-9e18-669Mparams-2.3Btokens
        (2560, 26, 20, 3_383_110_656),  # the exported 1e21, 1e22 and 1e23 runs
        (3840, 37, 30, 9_714_698_752),
        (5376, 51, 42, 24_963_098_112),
    ],
)
def test_released_models(published: Config, width: int, layers: int, heads: int, parameters: int) -> None:
    config = shrink(published, width).config
    assert (config.n_layers, config.n_heads, config.head_dim, config.mlp_width) == (
        layers,
        heads,
        128,
        4 * width,
    )
    counted = count_parameters(config)
    assert counted.total == parameters
    with torch.device("meta"):
        assert sum(p.numel() for p in Model(config).parameters()) == parameters
    assert counted.active == parameters - 2 * 128_256 * width


@pytest.mark.parametrize(
    ("width", "tokens", "budget"),
    [
        (1280, 2_336_227_328, 9e18),  # the cards' tokens and compute
        (640, 18_195_939_328, 1.8e19),  # rounded to 2e19 in its name
        (5376, 628_172_521_472, 1e23),
    ],
)
def test_operations_are_the_published_budgets(
    published: Config, width: int, tokens: int, budget: float
) -> None:
    config = shrink(published, width).config
    per_token = (
        train_flops_per_token(config) + 6 * config.d_model * config.vocab_size
    )  # they count the LM head
    assert per_token * tokens == pytest.approx(budget, rel=3e-5)  # rounded to whole steps


def test_rope_is_slowed_down_where_it_is_slow(published: Config) -> None:
    """The ends of the Llama 3 rule: the fastest pair as it is, the slowest by the whole factor."""
    plain = rope_frequencies(published.model_copy(update={"rope_factor": 1.0}))
    slowed = rope_frequencies(published)
    assert slowed[0] == plain[0] == 1
    assert slowed[-1] == pytest.approx(float(plain[-1]) / 8, rel=1e-12)
    assert (slowed <= plain).all()


def test_nothing_reaches_back_in_time_or_into_another_document(published: Config) -> None:
    config = small(published)
    model, ids = drawn(config).double(), tokens(config, batch=1, seq=12)
    segments = torch.tensor([[0] * 5 + [1] * 7])
    changed = ids.clone()
    changed[0, 3] = (changed[0, 3] + 1) % config.vocab_size
    with torch.no_grad():
        difference = (model(ids, segments)[0] - model(changed, segments)[0]).abs().amax(-1)[0]
    assert difference[:3].max() == 0
    assert difference[3:5].min() > 0
    assert difference[5:].max() == 0


def test_initialisation(published: Config) -> None:
    """Frobenius norms of a truncated normal of sigma 1 / sqrt(fan-in); the embedding 1 / d_model."""
    config = shrink(published, 256, vocab_size=2000).config
    model = Model(config)
    model.initialise(0)
    cut = 0.98658  # standard deviation of a unit normal cut at 3
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            assert torch.equal(p, torch.ones_like(p)), name
            continue
        sigma = 1 / p.shape[1] if "embed" in name else 1 / math.sqrt(p.shape[1])
        assert float(p.detach().norm()) == pytest.approx(cut * sigma * math.sqrt(p.numel()), rel=0.01), name
        assert p.abs().max() <= 3 * sigma
    again = Model(config)
    again.initialise(0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_below_the_published_widths(published: Config) -> None:
    shrunk = shrink(published, 64, vocab_size=512)
    assert (shrunk.config.n_layers, shrunk.config.n_heads, shrunk.config.head_dim) == (1, 4, 16)
    assert "feed-forward width / width 4" in shrunk.kept
    assert {change.name for change in shrunk.changed} == {"head_dim", "layers", "vocabulary"}


@pytest.mark.parametrize(
    ("width", "fields", "says"),
    [
        (520, {}, "width 520 is not a multiple of 128"),
        (0, {}, "width 0 is not a multiple of 16"),
        (64, {"head_dim": 7}, "head_dim is 7"),
        (64, {"rope_high_frequency": 1.0}, "must be above rope_low_frequency"),
    ],
)
def test_impossible_shapes(published: Config, width: int, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        shrink(published, width, **fields)


def test_transformers_loads_what_is_written(published: Config, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the `peers` extra: transformers")
    config = small(published, d_model=24)
    model = drawn(config)
    write_weights(tmp_path, config_to_export(config), model.state_dict())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = tokens(config)
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=ids).logits, model(ids, torch.zeros_like(ids))[0])


def test_what_transformers_writes_is_loaded(published: Config, tmp_path: Path) -> None:
    config = small(published, d_model=24, rope_factor=1.0)
    theirs = peer(config).bfloat16()
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    loaded = load_export(tmp_path, load_published("delphi"))
    assert loaded.config == config
    state = loaded.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())


def test_the_older_form_of_a_released_configuration(published: Config) -> None:
    export = config_to_export(published)
    rope = export.pop("rope_parameters")
    theta = rope.pop("rope_theta")
    assert config_from_export({**export, "rope_theta": theta, "rope_scaling": rope}, published) == published


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"model_type": "qwen3_moe"},
            "c.json: `model_type` is 'qwen3_moe'; this architecture has 'qwen3' only",
        ),
        ({"num_key_value_heads": 6}, r"`num_key_value_heads` \(6\) must equal `num_attention_heads` \(42\)"),
        ({"tie_word_embeddings": True}, "`tie_word_embeddings` is True"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "`rope_type` is 'yarn'"),
        ({"rope_parameters": None}, "no `rope_theta`"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"hidden_size": "5376"}, "`d_model`"),
    ],
)
def test_a_variant_that_this_is_not_is_refused(published: Config, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        config_from_export({**config_to_export(published), **change}, published, "c.json")


def test_a_missing_shape_is_not_guessed(published: Config) -> None:
    export = {key: value for key, value in config_to_export(published).items() if key != "head_dim"}
    with pytest.raises(InputError, match="no `head_dim`"):
        config_from_export(export, published)
