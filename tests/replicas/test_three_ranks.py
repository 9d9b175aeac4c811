"""Router biases and optimizer steps over three ranks, unevenly sharded, are those of one process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from replicas.models.quantile_balancing import quantile_threshold, quantile_threshold_histogram

from .three_ranks import BINS, RANKS, SHAPES, TOP_K, margins, three_steps

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
