"""The untrained model against the public log: parameter norms and the loss before anything was learned."""

import csv
import math
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from replicas.models.kernels import cross_entropy_with_z
from replicas.models.marin_moe import MarinMoE, MarinMoEConfig, shrink

LOGGED = Path(__file__).parents[3] / "logs" / "published" / "marin" / "marin_hero_param_norms.csv"

# The log covers the first 1,300 steps. What MuonH and AdamH step keeps its norm; of what Adam steps, the
# start is the end of the logged range that it moves away from.
GROUPS = {
    "attn.w_q": ("*.self_attn.q_proj.weight", "min"),
    "attn.w_o": ("*.self_attn.o_proj.weight", "min"),
    "attn.w_k": ("*.self_attn.k_proj.weight", "min"),
    "attn.w_v": ("*.self_attn.v_proj.weight", "min"),
    "mlp.expert_mlp.w_gate/w_up/w_down": ("*.experts.{gate,up,down}_proj.weight", "min"),
    "mlp.w_latent_down/up": ("*.mlp.latent_{down,up}_proj.weight", "min"),
    "shared.{0,1}.w_gate/w_up/w_down": ("*.shared_experts.{0,1}.{gate,up,down}_proj.weight", "min"),
    "attn_gated_norm.w_down/up": ("*.attn_gated_norm.{down,up}_proj.weight", "min"),
    "mlp_gated_norm.w_down/up": ("*.mlp_gated_norm.{down,up}_proj.weight", "min"),
    "embed_gated_norm.w_down/up": ("model.embed_gated_norm.{down,up}_proj.weight", "min"),
    "final_gated_norm.w_down": ("model.final_gated_norm.down_proj.weight", "min"),
    "final_gated_norm.w_up": ("model.final_gated_norm.up_proj.weight", "min"),
    "output_proj": ("lm_head.weight", "min"),
    "token_embed": ("model.embed_tokens.weight", "min"),
    "mlp.router": ("*.mlp.router.weight", "min"),
    "mlp.router_bias": ("*.mlp.router.bias", "min"),
    "attn.attn_gate": ("*.attn_gate.weight", "min"),
    "attn.sconv_k.weight": ("*.sconv_k.weight", "avg"),  # moves either way
    "mlp.latent_norm.weight": ("*.latent_norm.weight", "min"),
    "rms_attn.weight": ("*.input_layernorm.weight", "min"),
    "rms_mlp.weight": ("*.post_attention_layernorm.weight", "min"),
    "sconv_attn.weight": ("*.sconv_attn.weight", "min"),
    "sconv_mlp.weight": ("*.sconv_mlp.weight", "min"),
    "embed_norm.weight": ("model.embed_norm.weight", "max"),
    "final_norm.weight": ("model.norm.weight", "min"),
}
"""By public name: our parameters, and the column of the log that is nearest to the start."""

# standard deviation of a normal cut at three of its own
CUT = math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2)))


def logged_norm(name: str) -> float:
    """Of one group, all layers stacked; where a row names several matrices, of each of them."""
    with LOGGED.open(newline="") as stream:
        rows = {row["parameter(48-layer stacked)"]: row for row in csv.DictReader(stream)}
    return float(rows[name][GROUPS[name][1]])


def alternatives(mask: str) -> list[str]:
    """The masks that a mask with {a,b} stands for."""
    before, brace, rest = mask.partition("{")
    if not brace:
        return [mask]
    inside, _, after = rest.partition("}")
    return [whole for choice in inside.split(",") for whole in alternatives(f"{before}{choice}{after}")]


def kind(name: str) -> str:
    if name.endswith(("router.bias", "attn_gate.weight")):
        return "zeros"
    if "sconv_" in name:
        return "identity"
    return "ones" if name.endswith("norm.weight") else "matrix"


@pytest.fixture(scope="module")
def full_size(marin: MarinMoEConfig) -> dict[str, torch.Tensor]:
    """The published model without memory: names and shapes."""
    with torch.device("meta"):
        return MarinMoE(marin).state_dict()


def test_every_logged_group_is_ours_and_the_other_way_round(full_size: dict[str, torch.Tensor]) -> None:
    with LOGGED.open(newline="") as stream:
        assert {row["parameter(48-layer stacked)"] for row in csv.DictReader(stream)} == set(GROUPS)
    masks = [mask for braced, _ in GROUPS.values() for mask in alternatives(braced)]
    assert all(sum(fnmatchcase(name, mask) for mask in masks) == 1 for name in full_size)


@pytest.mark.parametrize("group", GROUPS)
def test_norms_by_the_rule(full_size: dict[str, torch.Tensor], marin: MarinMoEConfig, group: str) -> None:
    """Frobenius norms expected of the rule at full size: sqrt(elements) times the root mean square of one."""
    sigma = 0.5 / math.sqrt(marin.d_model)
    for mask in alternatives(GROUPS[group][0]):
        square = 0.0
        for name, tensor in full_size.items():
            if fnmatchcase(name, mask):
                mean_square = {"zeros": 0, "ones": 1, "identity": 1 / 4, "matrix": (CUT * sigma) ** 2}
                square += tensor.numel() * mean_square[kind(name)]
        assert math.sqrt(square) == pytest.approx(logged_norm(group), rel=0.005)


@pytest.fixture(scope="module")
def thin(marin: MarinMoEConfig) -> dict[str, torch.Tensor]:
    """A model as `initialise` leaves it, with enough elements in each group for its root mean square to be sharp.

    Wide, as the rule depends on the width alone; shallow and with narrow experts, to be light.
    """
    shape = {"n_layers": 1, "vocab_size": 256, "expert_width": 32, "latent_dim": 96, "shared_width": 256}
    model = MarinMoE(shrink(marin, 2048, **shape).config)
    model.initialise(0)
    return model.state_dict()


@pytest.mark.parametrize("group", GROUPS)
def test_norms_as_drawn(
    full_size: dict[str, torch.Tensor], thin: dict[str, torch.Tensor], marin: MarinMoEConfig, group: str
) -> None:
    """Root mean square of what was drawn, taken to the full width and size, against the log."""
    for mask in alternatives(GROUPS[group][0]):
        drawn = [tensor for name, tensor in thin.items() if fnmatchcase(name, mask)]
        square = sum(float(tensor.double().square().sum()) for tensor in drawn)
        rms = math.sqrt(square / sum(tensor.numel() for tensor in drawn))
        names = [name for name in full_size if fnmatchcase(name, mask)]
        if kind(names[0]) == "matrix":
            rms *= math.sqrt(2048 / marin.d_model)
        norm = rms * math.sqrt(sum(full_size[name].numel() for name in names))
        assert norm == pytest.approx(logged_norm(group), rel=0.005)


def test_matrices_are_cut_at_three_sigma(thin: dict[str, torch.Tensor]) -> None:
    sigma = 0.5 / math.sqrt(2048)
    largest = max(float(tensor.abs().max()) for name, tensor in thin.items() if kind(name) == "matrix")
    assert 2.9 * sigma < largest <= 3 * sigma * (1 + 1e-6)


@pytest.mark.parametrize("width", [32, 64])
def test_loss_of_the_untrained_model(marin: MarinMoEConfig, width: int) -> None:
    """As logged at step 0, evaluation 11.786, training with the z term 11.80, at any width: the rule has none."""
    config = shrink(marin, width, n_experts=16, top_k=2, capacity_factor=None).config
    assert config.vocab_size == 128256
    model = MarinMoE(config)
    model.initialise(0)
    ids = torch.randint(config.vocab_size, (1, 129), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(ids, torch.zeros_like(ids))[0][0, :-1]
        targets = ids[0, 1:]
        loss, nats = cross_entropy_with_z(logits, targets, config.z_loss)
        # what these few tokens' logits have above all tokens' is chance: .02 nats
        chance = (logits.mean(-1) - logits.gather(-1, targets[:, None])[:, 0]).mean().item()
    assert abs(chance) < 0.1
    assert nats.mean().item() - chance == pytest.approx(11.786, abs=0.01)
    assert loss.mean().item() - chance == pytest.approx(11.80, abs=0.01)
