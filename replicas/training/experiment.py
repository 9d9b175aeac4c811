"""One training run as configuration: what is trained, on what, for how long, and on which machine."""

import hashlib
import json
import math
from typing import Any, Literal

from pydantic import Field, model_validator

from experiments.configuration import Config, InputError
from replicas.plan import Plan, plan
from replicas.published import Published


class Evaluation(Config):
    """Held-out loss per domain: after the first step, then evenly over the run, the last step included."""

    times: int = Field(ge=1)
    sequences_per_domain: int = Field(ge=1)


class Machine(Config):
    """Where and how the arithmetic runs; none of it changes what is trained, but rounding depends on it.

    Attributes:
        devices, nodes: devices of one node, and nodes; their product is the number of ranks.
        strategy: `single` device; `ddp`, every rank a whole copy; `fsdp`, weights, gradients and optimizer state
            sharded over the ranks (FSDP2), also on one.
        expert_parallel_degree: ranks that share the routed experts of a layer out among them, so that token rows travel
            instead of experts; the rest stays sharded over all ranks (`fsdp` alone).
        micro_batches: parts that each rank computes its share of a batch in, one after the other.
        threads: of a CPU, per rank; None leaves it to torch. 1 and 2 threads round differently.
        precision: `bf16-mixed` and `16-mixed` compute in autocast, the latter with dynamic loss scaling, for GPUs
            without bfloat16; `bf16-true` computes in bfloat16 on float32 master weights (`fsdp` alone).
        activation_checkpointing: compute the inside of a block again for its backward pass instead of keeping it.
        compile: `torch.compile` each block.
        newton_schulz_precision: None is as published.
    """

    accelerator: Literal["cpu", "cuda", "mps", "auto"]
    devices: int = Field(ge=1)
    nodes: int = Field(ge=1)
    strategy: Literal["single", "ddp", "fsdp"] = "single"
    expert_parallel_degree: int = Field(default=1, ge=1)
    micro_batches: int = Field(default=1, ge=1)
    threads: int | None = Field(ge=1)
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"]
    activation_checkpointing: bool = False
    compile: bool = False
    newton_schulz_precision: Literal["bfloat16", "float32", "float64"] | None

    @property
    def ranks(self) -> int:
        """Processes that train together, one per device."""
        return self.devices * self.nodes

    @model_validator(mode="after")
    def _possible(self) -> "Machine":
        if self.strategy == "single" and self.ranks > 1:
            raise ValueError(f"`strategy: single` is one device, not {self.ranks}; choose ddp or fsdp")
        if self.expert_parallel_degree > 1 and self.strategy != "fsdp":
            raise ValueError("`expert_parallel_degree` above 1 needs `strategy: fsdp`; set that")
        if self.ranks % self.expert_parallel_degree:
            raise ValueError(
                f"`expert_parallel_degree` ({self.expert_parallel_degree}) does not divide the {self.ranks} ranks, "
                f"{self.devices} devices x {self.nodes} nodes"
            )
        if self.precision == "bf16-true" and self.strategy != "fsdp":
            raise ValueError(
                "`precision: bf16-true` keeps float32 masters through `strategy: fsdp`; set that"
            )
        if self.precision == "16-mixed" and self.strategy == "fsdp":
            raise ValueError(
                "`precision: 16-mixed` has no loss scaling under fsdp; choose bf16-mixed, or ddp"
            )
        if self.precision == "16-mixed" and self.accelerator == "cpu":
            raise ValueError("`precision: 16-mixed` needs a GPU; on a CPU choose bf16-mixed or 32-true")
        return self


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
        ranks, micro_batches = self.machine.ranks, self.machine.micro_batches
        if self.batch_sequences % (ranks * micro_batches):
            raise ValueError(
                f"batch_sequences ({self.batch_sequences}) does not divide over {ranks} devices x {micro_batches} "
                f"micro-batches; make it a multiple of {ranks * micro_batches}, or change `machine`"
            )
        return self

    @property
    def forward_sequences(self) -> int:
        """Sequences of one forward pass: a micro-batch of one rank."""
        return self.batch_sequences // (self.machine.ranks * self.machine.micro_batches)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all devices."""
        return self.batch_sequences * self.seq_len


def fingerprint(experiment: Experiment, data_version: str) -> str:
    """Twelve hex digits that name what a checkpoint belongs to: the run, and everything that changes its curve.

    The name counts: two runs of a study may differ in nothing else, and are trained side by side. What may change
    while a run is stopped does not count: how often it saves and logs, and how its batch is spread (`devices`,
    `nodes`, `strategy`, `expert_parallel_degree`, `micro_batches`, `activation_checkpointing`).
    """
    fields: dict[str, Any] = experiment.model_dump()
    for outward in ("checkpoint_every_seconds", "log_every_steps"):
        del fields[outward]
    for spread in ("devices", "nodes", "strategy", "expert_parallel_degree", "micro_batches"):
        del fields["machine"][spread]
    del fields["machine"]["activation_checkpointing"]
    text = json.dumps({"experiment": fields, "data": data_version}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plan_experiment(experiment: Experiment, published: Published, vocab_size: int) -> Plan:
    """The plan of `experiment`: shape by the shrinking rule, rates by the published law.

    Capacity groups are the published ones, or the greatest part of one that makes up the batch, unless `shape` says
    otherwise; how the batch is spread has no say, since it must not change which assignments are dropped.

    Raises:
        InputError: a width or a field that is impossible, a forward pass that would cut a capacity group, or experts
            that cannot be shared out as `machine` says; the run is named.
    """
    defaults: dict[str, Any] = {"vocab_size": vocab_size, "seq_len": experiment.seq_len}
    group = getattr(published.model, "capacity_group_sequences", None)
    if group is not None:
        defaults["capacity_group_sequences"] = math.gcd(group, experiment.batch_sequences)
    try:
        planned = plan(
            published,
            experiment.width,
            tokens=experiment.tokens,
            batch_sequences=experiment.batch_sequences,
            tokens_per_active_param=experiment.tokens_per_active_param,
            **{**defaults, **experiment.shape},
        )
        _check_capacity_groups(experiment, planned.config)
        _check_expert_parallel(experiment.machine.expert_parallel_degree, planned.config)
    except InputError as error:
        raise InputError(f"run {experiment.name}: {error}") from None
    return planned


def _check_capacity_groups(experiment: Experiment, config: Any) -> None:
    """That no forward pass of `experiment` cuts a capacity group."""
    if getattr(config, "capacity_factor", None) is None:
        return
    group, sequences = config.capacity_group_sequences, experiment.forward_sequences
    if sequences % group:
        machine = experiment.machine
        raise InputError(
            f"a forward pass has {sequences} of the {experiment.batch_sequences} sequences of a batch ({machine.ranks} "
            f"devices x {machine.micro_batches} micro-batches), no whole number of capacity groups of {group}: use "
            f"fewer devices or micro-batches, or set `shape.capacity_group_sequences` to {math.gcd(group, sequences)}, "
            "which changes what is dropped"
        )


def _check_expert_parallel(degree: int, config: Any) -> None:
    """That `degree` ranks can share the experts of `config` out evenly."""
    n_experts = getattr(config, "n_experts", 0)
    if degree > 1 and not n_experts:
        raise InputError("`machine.expert_parallel_degree` is above 1, but the model is dense; leave it out")
    if n_experts % degree:
        raise InputError(
            f"n_experts ({n_experts}) is not a multiple of `machine.expert_parallel_degree` ({degree}); change either"
        )
