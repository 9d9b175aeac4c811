"""A forecast written down before a run, that cannot be changed unnoticed, and its comparison with the log.

The file is JSON with the SHA-256 of its own content: of everything but `hash`, written canonically (keys sorted, no
spaces, numbers as Python writes them). It is never overwritten. The hash finds a changed file; that the whole file,
hash and all, is as old as it claims is for git, or for dvc.lock, to show.
"""

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field

from analysis.curves import points
from experiments.configuration import Config, InputError, parse, write_json
from logs.schema import Run

SCHEMA = 1
LEVEL = 0.95
FOLDER = Path("preregistrations")


class BrokenError(Exception):
    """The content of a preregistration does not fit the hash in it."""


class Claim(Config):
    """That `metric` of `run` will be `predicted` once zero-based step `step` is done."""

    run: str
    metric: str
    unit: str
    step: int = Field(ge=0)
    text: str


class Data(Config):
    """What the forecast was made from: `n` evaluations of a run, the hash of their steps and values, and those of
    the files they were read from."""

    run: str
    n: int
    sha256: str
    sources: dict[str, str]


class Code(Config):
    """Version of Maquette, and the hash of the modules that make the forecast."""

    version: str
    sha256: str


class Preregistration(Config):
    """The file. `interval` is at 95 %; `law` says how the number was found, with its parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    format_version: int = Field(alias="schema")
    claim: Claim
    law: dict[str, Any]
    predicted: float
    interval: tuple[float, float]
    data: tuple[Data, ...]
    code: Code
    warnings: tuple[str, ...]
    hash: str


def content_hash(content: dict[str, Any]) -> str:
    """SHA-256 of `content` without its `hash`, in canonical JSON."""
    rest = {key: value for key, value in content.items() if key != "hash"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def evaluations_used(run: Run, metric: str) -> Data:
    """The evaluations of `run` as a preregistration pins them."""
    rows = points(run, metric)
    pairs = [[int(step), float(value)] for step, value in zip(rows["step"], rows["value"], strict=True)]
    text = json.dumps(pairs, separators=(",", ":"))
    sources = {source.path: source.sha256 for source in run.sources}
    return Data(run=run.name, n=len(pairs), sha256=hashlib.sha256(text.encode()).hexdigest(), sources=sources)


def code_version(modules: Iterable[str]) -> Code:
    """Version of Maquette and the hash of these modules of this folder, e.g. `across`."""
    digest = hashlib.sha256()
    for name in sorted(modules):
        digest.update(name.encode() + b"\0" + Path(__file__).with_name(f"{name}.py").read_bytes() + b"\0")
    return Code(version=version("maquette-lm"), sha256=digest.hexdigest())


def preregistration(
    claim: Claim,
    law: dict[str, Any],
    predicted: float,
    interval: tuple[float, float],
    data: list[Data],
    code: Code,
    warnings: list[str],
) -> dict[str, Any]:
    """The file's content with its hash.

    Raises:
        InputError: the prediction or its interval is not finite, or the interval has no width.
    """
    if not np.isfinite([predicted, *interval]).all() or interval[0] >= interval[1]:
        raise InputError(
            f"the forecast of {claim.run} has no finite interval of some width; what cannot be wrong cannot be "
            "preregistered: use another method or more rungs"
        )
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "claim": claim.model_dump(),
        "law": law,
        "predicted": float(predicted),
        "interval": [float(side) for side in interval],
        "data": [one.model_dump() for one in data],
        "code": code.model_dump(),
        "warnings": list(warnings),
    }
    return content | {"hash": content_hash(content)}


def write_preregistration(path: Path, content: dict[str, Any]) -> None:
    """Write the file, never over another.

    Raises:
        InputError: something is there already.
    """
    if path.exists():
        raise InputError(
            f"{path}: is there already, and a preregistration is not overwritten; name another file with --out"
        )
    write_json(path, content)


def read_preregistration(path: Path) -> Preregistration:
    """The file, checked.

    Raises:
        InputError: it is not there, or no preregistration.
        BrokenError: its content does not fit its hash.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(data, dict) or "hash" not in data:
        raise InputError(f"{path}: no preregistration; `maquette preregister` writes one")
    try:
        expected = content_hash(data)
    except ValueError:
        expected = ""
    if expected != data["hash"]:
        raise BrokenError(
            f"{path}: its content does not fit its hash {str(data['hash'])[:12]}...: it was changed after it was "
            "written; restore it from git or from DVC's cache"
        )
    found = parse(Preregistration, data, str(path))
    if found.format_version != SCHEMA:
        raise InputError(
            f"{path}: written in version {found.format_version} of the format; this one is {SCHEMA}"
        )
    low, high = found.interval
    if low >= high:
        raise InputError(
            f"{path}: `interval` runs from {low:g} to {high:g}; its lower end must lie below its upper one. "
            "`maquette preregister` writes no such file: preregister anew"
        )
    return found


def landed_value(run: Run, claim: Claim) -> float | None:
    """The value of the claim's metric at its step in the log of its run; None while the run is not there yet.

    Raises:
        InputError: the run does not log the metric, or passed the step without logging it there.
    """
    rows = points(run, claim.metric)
    here = rows[rows["step"] == claim.step]
    if len(here):
        return float(here["value"].iloc[-1])
    if int(rows["step"].iloc[-1]) > claim.step:
        raise InputError(
            f"run {run.name} logs `{claim.metric}` after step {claim.step} but not at it: the claim cannot be scored"
        )
    return None


def score(found: Preregistration, landed: float | None) -> dict[str, Any]:
    """The keys of `maquette score --json`; `error` is landed minus predicted, None before the run is there."""
    low, high = found.interval
    return {
        "claim": found.claim.model_dump(),
        "law": found.law,
        "predicted": found.predicted,
        "interval": [low, high],
        "level": LEVEL,
        "landed": landed,
        "error": None if landed is None else landed - found.predicted,
        "inside": None if landed is None else low <= landed <= high,
        "hash": found.hash,
        "warnings": list(found.warnings),
    }


def calibration(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """How preregistrations did together: of those that landed, the share inside their intervals, which should
    come to `level`, and the mean absolute error in units of half an interval."""
    done = [one for one in scores if one["landed"] is not None]
    halves = [2 * abs(one["error"]) / (one["interval"][1] - one["interval"][0]) for one in done]
    return {
        "preregistered": len(scores),
        "landed": len(done),
        "inside": sum(one["inside"] for one in done),
        "share_inside": sum(one["inside"] for one in done) / len(done) if done else None,
        "level": LEVEL,
        "mean_error_in_half_intervals": float(np.mean(halves)) if done else None,
    }
