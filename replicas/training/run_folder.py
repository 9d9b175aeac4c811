"""The run folder: what a finished training run leaves behind, and the row log it grows from.

config.yaml       the whole configuration        plan.json      the shrink plan, ratios kept and changed
environment.json  versions, machine, threads     data.json      data version, mixture, tokenizer
facts.json        `logs.schema.RunFacts`         summary.json   final losses, tokens/s
metrics.jsonl     one JSON object per step; evaluation rows beside them
model.safetensors, config.json   the final weights, see `replicas.models.portable`
"""

import json
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from experiments.configuration import write_json, write_whole
from replicas.models.portable import write_weights


class MetricLog:
    """`metrics.jsonl`, appended to in step order; opening it at a step forgets the rows from that step on."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = []
        if path.exists():
            with path.open(encoding="utf-8") as stream:
                for line in stream:
                    if not line.endswith("\n") or json.loads(line)["step"] >= first_step:
                        break  # rows of steps that a kill took back, or a torn last line
                    kept.append(line)
        with write_whole(path) as stream:
            stream.writelines(kept)
        self._stream = path.open("a", encoding="utf-8")

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append `rows` and hand them to the operating system."""
        self._stream.writelines(json.dumps(row) + "\n" for row in rows)
        self._stream.flush()

    def close(self) -> None:
        """No more rows."""
        self._stream.close()


def environment(threads: int, accelerator: str) -> dict[str, Any]:
    """What the run depended on beside its configuration: versions and machine."""
    packages = ("torch", "lightning", "numpy", "tokenizers", "wandb", "maquette-lm")
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "torch_build": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": threads,
        "accelerator": accelerator,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def write_run_folder(
    out: Path,
    metrics: Path,
    config: dict[str, Any],
    documents: dict[str, dict[str, Any]],
    model_config: dict[str, Any],
    weights: dict[str, Tensor],
) -> None:
    """Write the whole folder beside `out`, then put it in its place.

    Args:
        metrics: the finished row log, copied in.
        config: becomes `config.yaml`.
        documents: by file name, what goes into each JSON file.
        model_config, weights: see `replicas.models.portable.write_weights`.
    """
    beside = out.with_name(f".{out.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    with write_whole(beside / "config.yaml") as stream:
        yaml.safe_dump(config, stream, sort_keys=False)
    for name, document in documents.items():
        write_json(beside / name, document)
    shutil.copyfile(metrics, beside / "metrics.jsonl")
    write_weights(beside, model_config, weights)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(beside, out)
