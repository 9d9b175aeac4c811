"""The whole model against results of the published code, computed in float64 (`tests/golden/golden_block.npz`)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from replicas.models.kernels import cross_entropy_with_z
from replicas.models.marin_moe import MarinMoE
from replicas.models.marin_moe_export import config_from_export
from replicas.models.portable import load_weights
from replicas.models.quantile_balancing import balanced_bias, quantile_threshold_histogram
from replicas.published import load_published

FILES = sorted((Path(__file__).parents[2] / "golden").glob("golden_block*.npz"))
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def test_there_is_a_golden_file() -> None:
    assert FILES


def run(golden: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Everything the file has under `expected/`, computed here."""
    config = config_from_export(json.loads(str(golden["config"])), load_published("marin-535b").model)
    model = MarinMoE(config).to(dtype).eval()
    prefix = "weight/"
    weights = {k.removeprefix(prefix): torch.from_numpy(golden[k]) for k in golden if k.startswith(prefix)}
    load_weights(model, weights)
    hidden: list[Tensor] = []
    for block in model.model.layers:
        block.register_forward_hook(lambda _module, _inputs, output: hidden.append(output[0]))
    ids = torch.from_numpy(golden["input_ids"])
    with torch.no_grad():
        logits, routings = model(ids, torch.from_numpy(golden["segment_ids"]))
    found = {"logits": logits}
    for i, (x, routing) in enumerate(zip(hidden, routings, strict=True)):
        assert config.qb_bins is not None
        beta = quantile_threshold_histogram(routing.margins, config.top_k, config.qb_bins)
        found |= {
            f"layer{i}.hidden": x,
            f"layer{i}.selected": routing.selected,
            f"layer{i}.combine": routing.combine,
            f"layer{i}.beta_hist10000": beta,
            f"layer{i}.next_router_bias": balanced_bias(beta),
            f"layer{i}.routing_entropy": routing.entropy,
            f"layer{i}.load_balancing_loss": routing.load_balancing_loss,
            f"layer{i}.router_z_loss": routing.router_z_loss,
        }
    model.set_router_biases(routings)
    for i, block in enumerate(model.model.layers):
        assert torch.equal(block.mlp.router.bias, found[f"layer{i}.next_router_bias"])
    # the last position predicts nothing
    loss, nats = cross_entropy_with_z(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), config.z_loss)
    return found | {"cross_entropy_mean": nats.mean(), "train_loss_with_z": loss.mean()}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_published_value(path: Path, dtype: torch.dtype) -> None:
    golden = np.load(path)
    found = run(golden, dtype)
    names = [name.removeprefix("expected/") for name in golden if name.startswith("expected/")]
    assert set(names) == set(found)
    for name in names:
        expected = golden[f"expected/{name}"]
        if name.endswith(".selected"):
            np.testing.assert_array_equal(found[name].numpy(), expected, err_msg=name)
            continue
        off = np.abs(found[name].double().numpy() - expected).max() / np.abs(expected).max()
        assert off < TOLERANCE[dtype], f"{name}: {off:.1e} of its largest value off"
