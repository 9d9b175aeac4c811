"""What the optimizer is given: gradients clipped where the recipe clips, as they are where it does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.nn.utils import get_total_norm

from replicas.optimizers.hyperball_adam import HyperballAdam
from replicas.training.experiment import Experiment
from replicas.training.train import train


@pytest.mark.parametrize(("public_run", "clipped"), [("delphi", True), ("marin-535b", False)])
def test_the_recipe_clips(
    public_run: str,
    clipped: bool,
    shards_folder: Path,
    tiny: Callable[..., Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[list[float]] = []
    step = HyperballAdam.step

    def step_and_note(self: HyperballAdam, **arguments: Any) -> Any:
        result = step(self, **arguments)
        groups = ([p.grad for p in group["params"]] for group in self.param_groups)
        given.append([float(get_total_norm(gradients)) for gradients in groups])
        return result

    monkeypatch.setattr(HyperballAdam, "step", step_and_note)
    shape = {} if public_run == "delphi" else tiny().shape
    train(
        tiny(public_run=public_run, shape=shape, tokens=5 * 4 * 32),
        shards_folder,
        tmp_path / "run",
        tmp_path / "s",
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [row["grad_norm"] for row in rows if "grad_norm" in row]
    assert len(logged) == len(given) == 5
    assert min(logged) > 0.15  # so that one group at least is clipped; logged before that
    for whole, norms in zip(logged, given, strict=True):
        if clipped:
            assert max(norms) == pytest.approx(0.1, rel=1e-5)
        else:
            assert sum(norm**2 for norm in norms) == pytest.approx(whole**2, rel=1e-5)
