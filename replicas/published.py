"""Published runs as data: `configurations/<run>.yaml`, every field with its value and where it was read."""

import importlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from experiments.configuration import Config, InputError, parse, read_yaml
from replicas.heuristics import LAWS

_CONFIGURATIONS: Final = Path(__file__).parent / "configurations"
_MODELS: Final = Path(__file__).parent / "models"
_INTERFACE: Final = ("Config", "Model", "shrink", "count_parameters", "train_flops_per_token")


class WeightDecay(Config):
    """Decoupled weight decay of a few parameters, falling to zero at the last step."""

    masks: tuple[str, ...]
    peak: float = Field(gt=0)
    start_step: int = Field(ge=0)  # none before; in a shorter run, at the same fraction of its steps
    total_steps: int = Field(gt=0)


class OptimizerRecipe(Config):
    """Which parameter is stepped by which rule, and the rules' constants."""

    groups: dict[str, tuple[str, ...]]  # glob masks over parameter names, by kind of step
    momentum: float | None = Field(default=None, ge=0, lt=1)  # this and the next two belong to muonh
    newton_schulz: Literal["quintic"] | None = None  # in optimizers.newton_schulz.COEFFICIENTS
    newton_schulz_precision: Literal["bfloat16", "float32", "float64"] | None = None
    max_grad_norm: float | None = Field(gt=0)  # each group is clipped to it by itself; None: no clipping
    heuristic: str  # name of a law in heuristics.LAWS
    weight_decay: WeightDecay | None

    @model_validator(mode="after")
    def _known_names(self) -> "OptimizerRecipe":
        unknown = set(self.groups) - {"muonh", "adamh", "adam"}
        if unknown:
            raise ValueError(f"groups {sorted(unknown)} unknown; allowed: muonh, adamh, adam")
        if self.heuristic not in LAWS:
            raise ValueError(f"heuristic {self.heuristic!r} unknown; allowed: {', '.join(LAWS)}")
        of_muonh = (self.momentum, self.newton_schulz, self.newton_schulz_precision)
        if any(("muonh" in self.groups) == (setting is None) for setting in of_muonh):
            raise ValueError(
                "momentum, newton_schulz and newton_schulz_precision go with the group muonh, and only with it"
            )
        return self


class ScheduleRecipe(Config):
    """Shape of the learning rate over a run; see `replicas.schedule`."""

    shape: Literal["linear", "cosine", "wsd", "constant", "inverse_sqrt"]
    warmup_fraction: float = Field(ge=0, lt=1)
    final_fraction: float = Field(ge=0, le=1)  # of the peak
    decay_fraction: float | None = Field(default=None, gt=0, le=1)  # of the run, for `wsd` only

    @model_validator(mode="after")
    def _decay_belongs_to_wsd(self) -> "ScheduleRecipe":
        if (self.shape == "wsd") != (self.decay_fraction is not None):
            raise ValueError("decay_fraction goes with shape wsd, and only with it")
        return self


class Ladder(Config):
    """How the published family scales: token budget, and depth and batch by width."""

    tokens_per_active_param: float = Field(gt=0)
    tokens: dict[int, int] = Field(default={})  # budget of a width that does not have the multiple above
    layers: dict[int, int]
    batch_sequences: dict[int, int]

    def budget(self, width: int, active_params: int) -> int:
        """Tokens of a full run at `width`, whose model has `active_params`."""
        return self.tokens.get(width) or round(self.tokens_per_active_param * active_params)


class Recipe(Config):
    """Everything of a published run but its architecture and data."""

    optimizer: OptimizerRecipe
    schedule: ScheduleRecipe
    ladder: Ladder


class ParameterGroups(Config):
    """Glob masks by group over parameter names: what the published totals count, and what they leave out."""

    counted: dict[str, tuple[str, ...]]
    apart: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Citation:
    """Where one field was read, and what is doubtful about it (None: nothing)."""

    source: str
    uncertain: str | None


@dataclass(frozen=True)
class Published:
    """One published run.

    Attributes:
        run, title: its name here, its name in words.
        architecture: the module under `replicas.models` with `Config`, `Model`, `shrink`, `count_parameters`
            and `train_flops_per_token`.
        model: an instance of that module's `Config`, at full size.
        parameters: the published counting rule.
        recipe: optimizer, schedule and ladder.
        citations: of every field, by dotted path, e.g. `model.top_k`.
    """

    run: str
    title: str
    architecture: ModuleType
    model: Any
    parameters: ParameterGroups
    recipe: Recipe
    citations: dict[str, Citation]

    @property
    def uncertain(self) -> dict[str, str]:
        """What is doubtful about which field, by dotted path."""
        return {path: c.uncertain for path, c in self.citations.items() if c.uncertain}


def published_runs() -> list[str]:
    """Names of the runs that `load_published` knows."""
    return sorted(path.stem for path in _CONFIGURATIONS.glob("*.yaml"))


def load_published(run: str) -> Published:
    """The published configuration of `run`, validated against its architecture.

    Raises:
        InputError: no such run (the known ones are listed), a field without value or source, an unknown or
            missing key, a value of the wrong type.
    """
    known = published_runs()
    if run not in known:
        close = get_close_matches(run, known, n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        raise InputError(f"no published run `{run}`; {hint}known: {', '.join(known)}")
    return read_published(_CONFIGURATIONS / f"{run}.yaml")


def read_published(path: Path) -> Published:
    """`load_published` for a file anywhere; see there."""
    citations: dict[str, Citation] = {}
    fields = _strip(read_yaml(path), "", str(path), citations)
    expected = {"name", "title", "architecture", "model", "parameters", "recipe"}
    if set(fields) != expected:
        odd = ", ".join(f"`{key}`" for key in sorted(set(fields) ^ expected))
        raise InputError(f"{path}: unknown or missing key {odd}; expected: {', '.join(sorted(expected))}")
    if fields["name"] != path.stem:
        raise InputError(f"{path}: `name` is {fields['name']!r}; it must be the file's name, {path.stem!r}")
    architecture = _architecture(fields["architecture"], str(path))
    return Published(
        run=fields["name"],
        title=fields["title"],
        architecture=architecture,
        model=parse(architecture.Config, fields["model"], f"{path}, model"),
        parameters=parse(ParameterGroups, fields["parameters"], f"{path}, parameters"),
        recipe=parse(Recipe, fields["recipe"], f"{path}, recipe"),
        citations=citations,
    )


def _architecture(name: Any, where: str) -> ModuleType:
    """The module of that name under `replicas.models`; imported only now, since it imports torch."""
    if not (isinstance(name, str) and name.isidentifier() and (_MODELS / f"{name}.py").exists()):
        raise InputError(f"{where}: no architecture {name!r}; it must be a module in replicas/models")
    module = importlib.import_module(f"replicas.models.{name}")
    missing = [part for part in _INTERFACE if not hasattr(module, part)]
    if missing:
        raise InputError(f"{where}: {name!r} is no architecture: its module lacks {', '.join(missing)}")
    return module


def _strip(node: Any, path: str, where: str, citations: dict[str, Citation]) -> Any:
    """The plain values of a tree whose leaves are `{value, source, uncertain}`; fills `citations`."""
    if not isinstance(node, dict):
        raise InputError(f"{where}: `{path}` needs `value` and `source`, found {node!r}")
    if "value" not in node and "source" not in node:
        return {
            key: _strip(child, f"{path}.{key}" if path else str(key), where, citations)
            for key, child in node.items()
        }
    unknown = set(node) - {"value", "source", "uncertain"}
    if unknown:
        odd = f"`{path}.{min(map(str, unknown))}`"
        raise InputError(f"{where}: {odd} is not a known key; allowed: value, source, uncertain")
    if "value" not in node:
        raise InputError(f"{where}: `{path}` has a source but no `value`")
    for key in ("source", "uncertain"):
        text = node.get(key)
        if (key in node or key == "source") and not (isinstance(text, str) and text.strip()):
            raise InputError(f"{where}: `{path}.{key}` must say where or what, in words")
    citations[path] = Citation(node["source"], node.get("uncertain"))
    return node["value"]
