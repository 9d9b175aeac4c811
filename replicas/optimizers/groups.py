"""Parameter groups by the published path masks, and the optimizer of a published recipe."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from experiments.configuration import InputError
from replicas.heuristics import Hyperparameters
from replicas.masks import assign, matches
from replicas.optimizers.hyperball_adam import HyperballAdam
from replicas.published import OptimizerRecipe


def parameter_groups(
    model: nn.Module,
    masks: Mapping[str, Sequence[str]],
    learning_rates: Mapping[str, float],
    decayed: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Groups for `HyperballAdam`, each with `name`, `kind`, `lr` and its named `params`.

    Args:
        model: every one of its parameters must match exactly one mask.
        masks: glob masks over parameter names by kind (`muonh`, `adamh`, `adam`).
        learning_rates: peak learning rate by kind.
        decayed: masks of parameters that get weight decay; they form groups of their own, `<kind>_decayed`.

    Raises:
        InputError: a parameter matches no mask or several, or its kind has no learning rate.
    """
    named = dict(model.named_parameters())
    groups: dict[str, dict[str, Any]] = {}
    for name, kind in assign(named, masks).items():
        if kind not in learning_rates:
            raise InputError(f"parameter `{name}` is stepped by `{kind}`, which has no learning rate")
        group_name = f"{kind}_decayed" if matches(name, decayed) else kind
        group = groups.setdefault(
            group_name, {"name": group_name, "kind": kind, "lr": learning_rates[kind], "params": []}
        )
        group["params"].append((name, named[name]))
    return list(groups.values())


def build_optimizer(
    model: nn.Module,
    recipe: OptimizerRecipe,
    hyperparameters: Hyperparameters,
    total_steps: int,
    precision: str | None = None,
) -> HyperballAdam:
    """The published optimizer for `model`; each group's `lr` is its peak, for a schedule to multiply.

    Args:
        recipe: masks and constants; its weight decay starts at the published fraction of `total_steps`.
        hyperparameters: what the published law gives for this run.
        total_steps: optimizer steps of the run.
        precision: of the Newton-Schulz products, if not the published one (bfloat16 is slow on most CPUs).

    Raises:
        InputError: see `parameter_groups`.
    """
    h, decay = hyperparameters, recipe.weight_decay
    rates = {"muonh": h.muonh, "adamh": h.adamh, "adam": h.adam}
    groups = parameter_groups(
        model,
        recipe.groups,
        {kind: rate for kind, rate in rates.items() if rate is not None},
        decayed=decay.masks if decay else (),
    )
    for group in groups:
        if decay and group["name"].endswith("_decayed"):
            group["weight_decay"] = decay.peak
            group["weight_decay_start"] = round(decay.start_step * total_steps / decay.total_steps)
            group["weight_decay_steps"] = total_steps
    of_muonh = {
        "momentum": recipe.momentum,
        "coefficients": recipe.newton_schulz,
        "precision": precision or recipe.newton_schulz_precision,
    }
    for group in groups:
        if group["kind"] == "muonh":
            group.update(of_muonh)
    return HyperballAdam(groups, beta1=h.beta1, beta2=h.beta2, eps=h.eps)
