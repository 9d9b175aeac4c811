"""One training run as configuration: what is trained, on what, for how long, and on which machine."""

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, model_validator

from experiments.configuration import Config


class Evaluation(Config):
    """Held-out loss per domain: after the first step, then evenly over the run, the last step included."""

    times: int = Field(ge=1)
    sequences_per_domain: int = Field(ge=1)


class Machine(Config):
    """Where and how the arithmetic runs; none of it changes what is trained, but rounding depends on it."""

    accelerator: Literal["cpu", "cuda", "mps", "auto"]
    devices: int = Field(ge=1)
    nodes: int = Field(ge=1)
    threads: int | None = Field(ge=1)  # of a CPU; None leaves it to torch. 1 and 2 threads round differently
    precision: Literal["32-true", "bf16-mixed"]
    newton_schulz_precision: Literal["bfloat16", "float32", "float64"] | None  # None: as published


class Experiment(Config):
    """A run of a shrunk published model.

    Attributes:
        name: e.g. `ladder/small`, `ablation/code-heavy/seed-1`; the run folder's path under `runs/`.
        public_run: the published run that is shrunk, e.g. `marin-535b`.
        width: d_model; everything else of the shape follows by the published rule.
        shape: fields of the architecture set outright, e.g. `n_experts`; the vocabulary comes from the shards.
        mixture: share of each domain in the training sequences, summing to 1.
        tokens, tokens_per_active_param: the budget, one of the two.
    """

    name: str
    public_run: str
    width: int = Field(gt=0)
    shape: dict[str, int | float | None]
    seq_len: int = Field(gt=1)
    batch_sequences: int = Field(gt=0)
    tokens: int | None = Field(default=None, gt=0)
    tokens_per_active_param: float | None = Field(default=None, gt=0)
    mixture_name: str
    mixture: dict[str, float]
    seed: int = Field(ge=0)
    evaluation: Evaluation
    machine: Machine
    checkpoint_every_seconds: float = Field(gt=0)
    log_every_steps: int = Field(ge=1)  # rows are written for every step; so often they go to disk

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if (self.tokens is None) == (self.tokens_per_active_param is None):
            raise ValueError("give either `tokens` or `tokens_per_active_param`")
        ranks = self.machine.devices * self.machine.nodes
        if self.batch_sequences % ranks:
            raise ValueError(f"batch_sequences ({self.batch_sequences}) does not divide over {ranks} devices")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all devices."""
        return self.batch_sequences * self.seq_len


def fingerprint(experiment: Experiment, data_version: str) -> str:
    """Twelve hex digits that name what a checkpoint belongs to: the run, and everything that changes its curve.

    The name counts: two runs of a study may differ in nothing else, and are trained side by side.
    """
    fields: dict[str, Any] = experiment.model_dump()
    for outward in ("checkpoint_every_seconds", "log_every_steps"):
        del fields[outward]
    text = json.dumps({"experiment": fields, "data": data_version}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
