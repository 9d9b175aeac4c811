"""Each stage of dvc.yaml depends on all the code of its package that it runs, so that a change makes it stale."""

from pathlib import Path

import pytest

from experiments.configuration import read_yaml

from .test_boundaries import ROOT, imports, module_name

RUNS = {
    "corpus": "replicas.data.corpus",
    "shards": "replicas.data.shards",
    "train-ladder": "replicas.training.train",
    "train-largest": "replicas.training.train",
    "train-ablation": "replicas.training.train",
    "preregister": "analysis.forecast.largest",
    "ingest-published": "logs.ingest",
    "ingest-own": "logs.ingest",
    "compare": "analysis.compare",
    "fit": "analysis.fit",
    "ablate": "analysis.ablation",
    "score": "analysis.forecast.record",
    "forecast": "analysis.forecast.document",
    "report": "analysis.report.page",
}
"""The module that does each stage's work."""


def modules(package: str) -> dict[str, Path]:
    return {module_name(path): path for path in (ROOT / package).rglob("*.py")}


def code_of(module: str) -> set[Path]:
    """The files of the same package that `module` imports, directly or not, found by name or by looking around."""
    known = modules(module.split(".")[0])
    found, frontier = set[Path](), [module]
    while frontier:
        path = known[frontier.pop()]
        if path in found:
            continue
        found.add(path)
        for name in imports(path):
            frontier += [part for part in (name, name.rpartition(".")[0]) if part in known]
        if path.name == "__init__.py" and "pkgutil" in path.read_text(encoding="utf-8"):
            frontier += [name for name in known if name.startswith(f"{module_name(path)}.")]
    return {path for path in found if path.read_bytes().strip() and path.name != "__init__.py"}


@pytest.mark.parametrize("stage", RUNS)
def test_a_stage_depends_on_the_code_it_runs(stage: str) -> None:
    depends = [
        ROOT / path for path in read_yaml(ROOT / "dvc.yaml")["stages"][stage]["deps"] if "$" not in path
    ]
    code = code_of(RUNS[stage])
    if stage.startswith("train-"):  # what makes the shards reaches a training by way of the shards
        code -= code_of(RUNS["corpus"]) | code_of(RUNS["shards"])
    assert code
    missing = [path for path in code if not any(path.is_relative_to(dependency) for dependency in depends)]
    assert not missing, (
        f"add to the deps of {stage}: {sorted(str(path.relative_to(ROOT)) for path in missing)}"
    )


def test_the_largest_rung_waits_for_its_forecast_and_the_forecast_never_sees_it() -> None:
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    assert stages["train-largest"]["deps"][0] == stages["preregister"]["outs"][0]
    smaller = [f"runs/ladder/{rung}" for rung in stages["train-ladder"]["matrix"]["rung"]]
    seen = [path for path in stages["preregister"]["deps"] if path.startswith(("runs", "logs/runs"))]
    assert sorted(seen) == sorted(smaller)
    assert stages["train-largest"]["outs"][0] not in seen
