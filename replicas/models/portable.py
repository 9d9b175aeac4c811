"""Weights in files that other tools read: `model.safetensors` and `config.json` in one folder.

An architecture may say how others name its configuration, in a module `<architecture>_export` with
`config_to_export(config)`; without one, `config.json` has the fields of its `Config`.
"""

import importlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from experiments.configuration import InputError, write_json
from replicas.models.architecture import LanguageModel

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"  # of weights in several files


def export_config(architecture: str, config: Any) -> dict[str, Any]:
    """`config.json` of a model of `replicas.models.<architecture>`, as that family's other tools expect it."""
    if importlib.util.find_spec(f"replicas.models.{architecture}_export"):
        export = importlib.import_module(f"replicas.models.{architecture}_export")
        return export.config_to_export(config)
    return {"architecture": architecture, **config.model_dump(mode="json")}


def write_weights(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write `weights` and `config` into `folder`, each file whole or not at all.

    Args:
        config: `config.json` but for `dtype`, which is added.
        weights: by the names of the state dict; any device, made contiguous.
    """
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{WEIGHTS}.part"
    try:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(tensors, beside, metadata={"format": "pt"})
        os.chmod(beside, 0o644)  # safetensors leaves it to its owner alone
        os.replace(beside, folder / WEIGHTS)
    finally:
        beside.unlink(missing_ok=True)
    write_json(folder / CONFIG, {**config, "dtype": str(widest(weights)).removeprefix("torch.")})


def read_weights(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`config.json` and all tensors of `folder`, whose weights are one file or several under an index.

    Raises:
        InputError: a file is missing, cut short or not of its format.
    """
    config = _read_json(folder / CONFIG)
    parts = [folder / WEIGHTS]
    if not parts[0].exists() and (folder / _INDEX).exists():
        index = _read_json(folder / _INDEX).get("weight_map")
        names = sorted(set(index.values())) if isinstance(index, dict) else []
        if not names or not all(isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) for name in names):
            raise InputError(f"{folder / _INDEX}: `weight_map` must name files of this folder")
        parts = [folder / name for name in names]
    weights: dict[str, Tensor] = {}
    for part in parts:
        try:
            weights |= load_file(part)
        except FileNotFoundError:
            raise InputError(f"{part}: no such file") from None
        except OSError as error:
            raise InputError(f"{part}: cannot be read: {error.strerror or error}") from None
        except SafetensorError as error:
            raise InputError(f"{part}: cut short or no safetensors file ({error}); copy it again") from None
    return config, weights


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # bad UTF-8 is one too
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def whole_weights(model: LanguageModel) -> dict[str, Tensor]:
    """The state dict of `model` on the CPU, shards put together; every rank must call it, rank 0 gets it all."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(model, options=options)
    return state


def widest(weights: Mapping[str, Tensor]) -> torch.dtype:
    """The precision that holds every floating-point tensor of `weights` exactly; float32 if there is none."""
    found = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    dtypes = iter(found or {torch.float32})
    dtype = next(dtypes)
    for other in dtypes:
        dtype = torch.promote_types(dtype, other)
    return dtype


@torch.no_grad()
def load_weights(model: LanguageModel, weights: Mapping[str, Tensor], where: str = "checkpoint") -> None:
    """Copy `weights` under the names of the state dict into `model`, in the model's precision.

    Raises:
        InputError: a tensor is missing, unknown or of another shape; the model is left as it was.
    """
    expected = model.state_dict()
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    for names, fault in ((missing, "lacks"), (unknown, "has an unknown")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InputError(f"{where}: {fault} tensor `{names[0]}`{more}; is it of this configuration?")
    for name, there in expected.items():
        if weights[name].shape != there.shape:
            raise InputError(
                f"{where}: `{name}` is {list(weights[name].shape)}, the configuration asks for {list(there.shape)}"
            )
    model.load_state_dict(dict(weights))
