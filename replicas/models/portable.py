"""Weights in files that other tools read: `model.safetensors` and `config.json` in one folder.

An architecture may say how others name its configuration, in a module `<architecture>_export` with
`config_to_export(config)` and `config_from_export(export, family, where)`; without one, `config.json` has the
fields of its `Config`.
"""

import importlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from experiments.configuration import InputError, parse, write_json
from replicas.models.architecture import LanguageModel
from replicas.published import Published

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"  # of weights in several files


def export_config(architecture: str, config: Any) -> dict[str, Any]:
    """`config.json` of a model of `replicas.models.<architecture>`, as that family's other tools expect it."""
    names = _public_names(architecture)
    if names is not None:
        return names.config_to_export(config)
    return {"architecture": architecture, **config.model_dump(mode="json")}


def _public_names(architecture: str) -> ModuleType | None:
    """The module that says how others name the configuration of `replicas.models.<architecture>`, if any."""
    module = f"replicas.models.{architecture}_export"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


def load_export(folder: Path, published: Published, family: Any = None) -> LanguageModel:
    """The model in `folder`, as `maquette export`, a training run, or a release left it; in evaluation mode.

    Args:
        folder: has `config.json` and the weights, in one `model.safetensors` or several under an index.
        published: a run of the model's architecture.
        family: gives what `config.json` leaves out, see `config_from_export`; default: as published.

    Returns:
        The model in the widest precision of its tensors, so that none is rounded.

    Raises:
        InputError: a file is missing or cut short, or is of another architecture or shape.
    """
    export, weights = read_weights(folder)
    config = _model_config(export, published, family or published.model, str(folder / CONFIG))
    with torch.device("meta"):
        model: LanguageModel = published.architecture.Model(config)
    model = model.to(widest(weights)).to_empty(device="cpu")
    load_weights(model, weights, str(folder / WEIGHTS))
    return model.eval()


def _model_config(export: dict[str, Any], published: Published, family: Any, where: str) -> Any:
    """What `export_config` made `export` of."""
    architecture = published.architecture.__name__.rsplit(".", 1)[1]
    names = _public_names(architecture)
    if names is not None:
        return names.config_from_export(export, family, where)
    if export.get("architecture") != architecture:
        raise InputError(f"{where}: `architecture` is {export.get('architecture')!r}, not {architecture!r}")
    fields = {key: value for key, value in export.items() if key not in ("architecture", "dtype")}
    return parse(published.architecture.Config, fields, where)


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
