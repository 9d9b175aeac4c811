"""Router biases, optimizer steps and routed experts over three ranks, unevenly sharded, are those of one process."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from replicas.models.quantile_balancing import quantile_threshold, quantile_threshold_histogram

from .models import references
from .three_ranks import (
    BINS,
    EXPERTS,
    RANKS,
    ROUTINGS,
    SHAPES,
    TOKENS,
    TOP_K,
    margins,
    route,
    stacks,
    three_steps,
    tokens,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and gloo")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    script, root = Path(__file__).with_name("three_ranks.py"), Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = ["timeout", "-k", "1", "60", sys.executable, str(script), str(folder)]
    subprocess.run(command, check=True, cwd=root, env=environment)
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(RANKS)]


def test_thresholds_are_those_of_all_tokens(found: list[dict[str, Any]]) -> None:
    exact = quantile_threshold(margins(), TOP_K)
    histogram = quantile_threshold_histogram(margins(), TOP_K, BINS)
    for of_rank in found:
        assert torch.equal(of_rank["exact"], exact)
        assert torch.equal(of_rank["histogram"], histogram)


def test_a_margin_that_is_no_number_spoils_the_batch_on_every_rank(found: list[dict[str, Any]]) -> None:
    assert all(of_rank["broken"].isnan().all() for of_rank in found)


@pytest.mark.parametrize("name", [name for shapes in SHAPES.values() for name in shapes])
def test_steps_are_those_of_whole_matrices(found: list[dict[str, Any]], name: str) -> None:
    expected = three_steps()
    for seed in (0, 2):
        for of_rank in found:
            assert torch.allclose(of_rank[f"{name} {seed}"], expected[f"{name} {seed}"], rtol=1e-5, atol=1e-6)


def test_all_ranks_refuse_a_step_that_one_cannot_make(found: list[dict[str, Any]]) -> None:
    for of_rank in found:
        assert of_rank["skip 1"] == "non-finite gradient of uneven"
        assert of_rank["skip 0"] is None
        assert of_rank["skip 2"] is None
        assert of_rank["skipped"] == 1
        for shapes in SHAPES.values():
            assert all(torch.equal(of_rank[f"{name} 1"], of_rank[f"{name} 0"]) for name in shapes)


@pytest.mark.parametrize("case", ROUTINGS)
def test_experts_shared_out_answer_as_the_loop(found: list[dict[str, Any]], case: str) -> None:
    chosen, factor, group = ROUTINGS[case]
    share_dropped = []
    for rank, of_rank in enumerate(found):
        x, selected, combine = (tensor.detach().numpy() for tensor in tokens(rank, chosen))
        capacity = None
        if factor is not None:
            capacity = math.ceil(factor * (group or TOKENS[rank]) * TOP_K / EXPERTS)
        matrices = (stack.numpy() for stack in stacks().values())
        expected, dropped = references.routed_experts(
            x, selected.tolist(), combine, *matrices, capacity, group
        )
        routed = of_rank["routed"][case]
        torch.testing.assert_close(routed["y"], torch.from_numpy(expected), rtol=1e-10, atol=1e-10)
        share_dropped.append(dropped / selected.size)
        assert routed["dropped"].item() == pytest.approx(share_dropped[-1], abs=1e-6)
    assert (max(share_dropped) > 0) == (factor is not None)


@pytest.mark.parametrize("case", ROUTINGS)
def test_gradients_of_experts_shared_out_are_means_over_the_ranks(
    found: list[dict[str, Any]], case: str
) -> None:
    matrices = {name: stack.requires_grad_() for name, stack in stacks().items()}
    for rank, of_rank in enumerate(found):
        expected, routed = route(rank, case, matrices), of_rank["routed"][case]
        for name in ("x", "combine"):
            torch.testing.assert_close(routed[name], expected[name], rtol=1e-10, atol=1e-10)
    means = {name: stack.grad / RANKS for name, stack in matrices.items() if stack.grad is not None}
    norm = torch.cat([mean.flatten() for mean in means.values()]).norm()
    for of_rank in found:
        for name, mean in means.items():
            torch.testing.assert_close(of_rank["routed"][case][name], mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(of_rank["routed"][case]["norm"], norm)
