"""What the report reads of the results in its folder, checked before anything is drawn."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from experiments.configuration import InputError, parse

Interval = tuple[float, float]
Table = dict[str, Any]


class Pair(BaseModel):
    """One own run over the public one."""

    own: str
    shape_distance: float | None
    interval: Interval | None
    shape: dict[str, Table]
    reasons: dict[str, str | None]
    grad_norm_landmarks: dict[str, Table]
    schedule: dict[str, Table]
    ledger: Annotated[list[Table], Field(min_length=1)]


class Comparison(BaseModel):
    """compare.json"""

    public: str
    metric: str
    reference_fraction: float | None
    reference_window: Interval | None
    pairs: Annotated[list[Pair], Field(min_length=1)]


class Parameter(BaseModel):
    """A fitted parameter with its two intervals."""

    value: float
    interval: Interval
    t_interval: Interval


class Point(BaseModel):
    """A run of the ladder: training FLOPs, and loss in the unit of the fit's metric."""

    name: str
    flops: float
    loss: float
    predicted: float


class Fit(BaseModel):
    """fit.json"""

    law: str
    metric: str | None
    n_used: int
    parameters: dict[str, Parameter]
    identified: dict[str, bool]
    holdout: Table
    degrees_of_freedom: int
    resamples: Table
    points: Annotated[list[Point], Field(min_length=1)]
    band: Annotated[list[Table], Field(min_length=1)]
    source: str
    warnings: list[str]

    @model_validator(mode="after")
    def _drawable(self) -> "Fit":
        if "alpha" not in self.parameters:
            raise ValueError(f"{self.law} has no exponent alpha over compute; the page draws power-law fits")
        return self


class Effect(BaseModel):
    """A difference from the baseline in bits per byte; what one seed cannot tell is null."""

    difference: float
    interval: Interval | None
    per_seed: list[float]
    n: int
    bootstrap_interval: Interval | None
    effect_size: float | None
    p_holm: float | None
    minimum_detectable: float | None
    seeds_needed: int | None
    verdict: str


class Mixture(BaseModel):
    """One mixture against the baseline."""

    mixture: str
    seeds: Annotated[list[int], Field(min_length=1)]
    overall: Effect
    domains: dict[str, Effect]
    curves: dict[str, list[Table]]
    apart_from_step: dict[str, int | None]


class Ablation(BaseModel):
    """ablation.json"""

    baseline: str
    domains: list[str]
    seed_noise: dict[str, Table]
    correction: Table
    mixtures: Annotated[list[Mixture], Field(min_length=1)]
    warnings: list[str]


class Found(BaseModel):
    """One thing that was found in a log."""

    kind: str
    severity: str
    onset_step: int | None
    end_step: int | None = None
    evidence: Any
    causes: list[str]
    try_first: str


class Phase(BaseModel):
    """A stretch of a run that behaves alike."""

    name: str
    first_step: int
    last_step: int


class Diagnosed(BaseModel):
    """What was found in one run's log."""

    run: str
    verdict: str
    findings: list[Found]
    phases: list[Phase]


class Diagnosis(BaseModel):
    """diagnosis.json of several runs; of one run it is a `Diagnosed` alone."""

    runs: Annotated[list[Diagnosed], Field(min_length=1)]


class Landing(BaseModel):
    """What is predicted at one point of a run, and what came."""

    fraction: float
    step: int
    predicted: float
    interval: Interval | None
    landed: float | None


class Forecast(BaseModel):
    """forecast.json"""

    run: str
    points: Annotated[list[Landing], Field(min_length=1)]
    method: str
    warnings: list[str]


class Score(BaseModel):
    """score.json: a preregistered forecast and what came."""

    predicted: float
    interval: Interval
    landed: float | None
    inside: bool | None
    finding: str


KINDS: dict[str, tuple[type[BaseModel], str]] = {
    "compare": (Comparison, "compare OWN..."),
    "fit": (Fit, "fit power-law --runs own/ladder"),
    "ablation": (Ablation, "ablate"),
    "diagnosis": (Diagnosis, "diagnose RUN..."),
    "forecast": (Forecast, "forecast RUN"),
    "score": (Score, "score PREREGISTRATION"),
}
"""By the name of the file: what must be in it, and the command that makes it."""


@dataclass(frozen=True)
class Results:
    """What the page draws; what is None has no section. `comparison` is compare.json as it stands, and so on;
    `diagnosis` the documents of the single runs."""

    comparison: Table
    fit: Table | None = None
    ablation: Table | None = None
    diagnosis: list[Table] | None = None
    forecast: Table | None = None
    score: Table | None = None


def read_results(folder: Path) -> Results:
    """The results in `folder`: compare.json, and of the others those that are there.

    Raises:
        InputError: compare.json is not there, or one that is there is not what its command writes.
    """
    found = {name: read_document(folder, name) for name in KINDS if name == "compare" or _there(folder, name)}
    return Results(
        comparison=found["compare"],
        fit=found.get("fit"),
        ablation=found.get("ablation"),
        diagnosis=found["diagnosis"]["runs"] if "diagnosis" in found else None,
        forecast=found.get("forecast"),
        score=found.get("score"),
    )


def _there(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").exists()


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """`folder/<name>.json` as the command wrote it, a diagnosis of one run as that of several; `name` is one of
    `KINDS`.

    Raises:
        InputError: not there, not JSON, or not what the command writes; the command is named.
    """
    path = folder / f"{name}.json"
    model, command = KINDS[name]
    remake = f"`maquette {command} --out {path}`"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: not there; run {remake} first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); make it anew with {remake}") from None
    if not isinstance(data, dict):
        kind = "null" if data is None else type(data).__name__
        raise InputError(f"{path}: holds {kind} where an object is expected; make it anew with {remake}")
    if model is Diagnosis and "run" in data:
        data = {"runs": [data]}
    try:
        parse(model, data, str(path))
    except InputError as error:
        raise InputError(f"{error}; make it anew with {remake}") from None
    return data
