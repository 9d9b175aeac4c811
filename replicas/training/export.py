"""`maquette export`: the weights of a run folder or a resume checkpoint as files that other tools read."""

import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.configuration import InputError, parse
from replicas.models.portable import (
    CONFIG,
    WEIGHTS,
    export_config,
    load_weights,
    read_weights,
    widest,
    write_weights,
)
from replicas.published import load_published
from replicas.training.checkpoints import is_intact, single_file

_IN_CHECKPOINT = "model."  # what Lightning puts before the names of `Replica.model`


def export(source: Path, out: Path) -> dict[str, Any]:
    """Write `model.safetensors` and `config.json` of `source` into `out`.

    Args:
        source: a run folder or an earlier export, or a resume checkpoint `step-<n>.ckpt`.
        out: a folder that does not exist yet, or is empty.

    Returns:
        What was written: `source`, `out`, `tensors`, `parameters`, `dtype`.

    Raises:
        InputError: `source` is none of these, damaged or incomplete; `out` holds files.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and is not an empty folder; name another with --out")
    if not source.exists():
        raise InputError(f"{source}: no such run folder or checkpoint")
    config, weights = read_weights(source) if (source / CONFIG).exists() else read_checkpoint(source)
    write_weights(out, config, weights)
    return {
        "source": str(source),
        "out": str(out),
        "tensors": len(weights),
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "dtype": str(widest(weights)).removeprefix("torch."),
    }


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and the weights of a resume checkpoint, by the names of the model's state dict.

    Raises:
        InputError: it is no checkpoint of a training run here, or damaged, or lacks tensors of its model.
    """
    remedy = f"give a run folder with {WEIGHTS} or a step-<n>.ckpt of a training run"
    if path.is_dir() and not (path / ".metadata").exists():
        raise InputError(f"{path}: no {CONFIG} with weights in it; {remedy}")
    if path.with_suffix(".sha256").exists() and not is_intact(path):
        raise InputError(f"{path}: damaged, its content is not what was saved; take the checkpoint before it")
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            whole = single_file(path, Path(folder) / path.name)
            checkpoint = torch.load(whole, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: damaged or no checkpoint ({first}); {remedy}") from None
    if not isinstance(checkpoint, dict) or not {"replica", "state_dict"} <= checkpoint.keys():
        raise InputError(f"{path}: not a checkpoint of a training run; {remedy}")
    replica, state = checkpoint["replica"], checkpoint["state_dict"]
    architecture = load_published(replica["run"]).architecture
    config = parse(architecture.Config, replica["config"], str(path))
    weights = {
        name.removeprefix(_IN_CHECKPOINT): tensor
        for name, tensor in state.items()
        if name.startswith(_IN_CHECKPOINT)
    }
    load_weights(architecture.Model(config), weights, str(path))
    return export_config(architecture.__name__.rsplit(".", 1)[1], config), weights
