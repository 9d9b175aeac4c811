"""What an experiment may say, and which checkpoints belong to it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from experiments.configuration import InputError
from replicas.published import load_published
from replicas.training.experiment import Experiment, fingerprint, plan_experiment

Make = Callable[..., Experiment]


@pytest.mark.parametrize("tokens", [None, 1000])
def test_the_budget_is_given_once(tiny: Make, tokens: int | None) -> None:
    both_or_neither = None if tokens is None else 2.0
    with pytest.raises(ValidationError, match="give either `tokens` or `tokens_per_active_param`"):
        tiny(tokens=tokens, tokens_per_active_param=both_or_neither)
    assert tiny(tokens=None, tokens_per_active_param=2.0).tokens_per_active_param == 2


@pytest.mark.parametrize("field", ["tokens", "width", "batch_sequences", "checkpoint_every_seconds"])
def test_nothing_is_not_a_size(tiny: Make, field: str) -> None:
    with pytest.raises(ValidationError, match=f"{field}\n.*greater than 0"):
        tiny(**{field: 0})


def test_the_batch_divides_over_all_devices_of_all_nodes(tiny: Make) -> None:
    machine = tiny().machine.model_dump() | {"strategy": "ddp"}
    assert tiny(machine={**machine, "devices": 2, "nodes": 2}).forward_sequences == 1
    with pytest.raises(ValidationError, match=r"\(4\) does not divide over 6 devices x 1 micro-batches"):
        tiny(machine={**machine, "devices": 2, "nodes": 3})
    with pytest.raises(ValidationError, match=r"2 devices x 4 micro-batches; make it a multiple of 8"):
        tiny(machine={**machine, "devices": 2, "micro_batches": 4})


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"devices": 2}, "`strategy: single` is one device, not 2; choose ddp or fsdp"),
    ({"precision": "bf16-true"}, "float32 masters through `strategy: fsdp`"),
    ({"precision": "bf16-true", "strategy": "ddp"}, "float32 masters through `strategy: fsdp`"),
    ({"precision": "16-mixed", "strategy": "fsdp", "accelerator": "cuda"}, "no loss scaling under fsdp"),
    ({"precision": "16-mixed"}, "`precision: 16-mixed` needs a GPU"),
    ({"expert_parallel_degree": 2}, "`expert_parallel_degree` above 1 needs `strategy: fsdp`; set that"),
    (
        {"strategy": "fsdp", "devices": 2, "nodes": 2, "expert_parallel_degree": 3},
        "`expert_parallel_degree` (3) does not divide the 4 ranks, 2 devices x 2 nodes",
    ),
    ({"micro_batches": 0}, "greater than or equal to 1"),
    ({"strategy": "fsdp2"}, "'single', 'ddp' or 'fsdp'"),
]


@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE)
def test_an_impossible_machine_is_refused(tiny: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        tiny(machine={**tiny().machine.model_dump(), **change})


def test_experts_are_shared_out_evenly(tiny: Make) -> None:
    machine = tiny().machine.model_dump() | {"strategy": "fsdp", "devices": 4, "expert_parallel_degree": 4}
    marin, delphi = load_published("marin-535b"), load_published("delphi")
    even = {"n_experts": 8, "top_k": 2, "qb_bins": None, "capacity_factor": None}
    assert plan_experiment(tiny(machine=machine, shape=even), marin, 300).config.n_experts == 8
    refused = re.escape("run tiny: n_experts (6) is not a multiple of `machine.expert_parallel_degree` (4)")
    with pytest.raises(InputError, match=refused):
        plan_experiment(tiny(machine=machine, shape=even | {"n_experts": 6}), marin, 300)
    with pytest.raises(
        InputError, match=r"`machine\.expert_parallel_degree` is above 1, but the model is dense"
    ):
        plan_experiment(tiny(machine=machine, shape={}, public_run="delphi", width=128), delphi, 300)


@pytest.mark.parametrize(("batch_sequences", "group"), [(4, 4), (16, 16), (24, 8), (48, 16), (7, 1)])
def test_capacity_groups_are_as_published_as_far_as_they_make_up_the_batch(
    tiny: Make, batch_sequences: int, group: int
) -> None:
    experiment = tiny(batch_sequences=batch_sequences)
    config = plan_experiment(experiment, load_published("marin-535b"), 300).config
    assert config.capacity_factor == 1.15
    assert config.capacity_group_sequences == group


def test_a_forward_pass_that_would_cut_a_capacity_group_is_refused(tiny: Make) -> None:
    """However the batch is spread, the same assignments are dropped; else it is not trained."""
    marin = load_published("marin-535b")
    machine = tiny().machine.model_dump() | {"strategy": "ddp", "devices": 2, "micro_batches": 3}
    experiment = tiny(batch_sequences=12, machine=machine)
    message = (
        "run tiny: a forward pass has 2 of the 12 sequences of a batch (2 devices x 3 micro-batches), no whole "
        "number of capacity groups of 4: use fewer devices or micro-batches, or set "
        "`shape.capacity_group_sequences` to 2"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        plan_experiment(experiment, marin, 300)
    for change in ({"capacity_group_sequences": 2}, {"capacity_factor": None}):
        fits = experiment.model_copy(update={"shape": experiment.shape | change})
        assert plan_experiment(fits, marin, 300).config.n_experts == 4


def test_tokens_per_step(tiny: Make) -> None:
    assert tiny().tokens_per_step == 4 * 32


CURVE_CHANGING: list[dict[str, Any]] = [
    {"width": 32},
    {"shape": {"n_experts": 4, "top_k": 1, "qb_bins": None}},
    {"seq_len": 16},
    {"batch_sequences": 8},
    {"tokens": 5000},
    {"mixture": {"code": 0.4, "prose": 0.6}},
    {"seed": 1},
    {"evaluation": {"times": 5, "sequences_per_domain": 4}},
    {"public_run": "another"},
]


def test_the_fingerprint_changes_with_all_that_changes_the_curve(tiny: Make) -> None:
    machine = tiny().machine.model_dump()
    machines: list[dict[str, Any]] = [
        {"threads": 2},
        {"precision": "bf16-mixed"},
        {"newton_schulz_precision": None},
        {"compile": True},
    ]
    changes = CURVE_CHANGING + [{"machine": {**machine, **change}} for change in machines]
    prints = [fingerprint(tiny(**change), "data") for change in [{}, *changes]]
    assert len(set(prints)) == len(prints)
    assert fingerprint(tiny(), "other data") not in prints


def test_the_fingerprint_does_not_change_with_how_often_is_saved(tiny: Make) -> None:
    changed = tiny(checkpoint_every_seconds=1.0, log_every_steps=3)
    assert fingerprint(changed, "data") == fingerprint(tiny(), "data")


def test_the_fingerprint_does_not_change_with_how_the_batch_is_spread(tiny: Make) -> None:
    """So that a run that was stopped can go on with more devices or fewer."""
    machine = tiny().machine.model_dump()
    spreads: list[dict[str, Any]] = [
        {"strategy": "fsdp", "micro_batches": 4},
        {"strategy": "fsdp", "devices": 2, "nodes": 2, "expert_parallel_degree": 2},
        {"strategy": "ddp", "devices": 2, "micro_batches": 2},
    ]
    for spread in spreads:
        changed = tiny(machine={**machine, **spread, "activation_checkpointing": True})
        assert fingerprint(changed, "data") == fingerprint(tiny(), "data")


def test_two_runs_alike_but_for_the_name_do_not_share_checkpoints(tiny: Make) -> None:
    """As a rung of the ladder and the baseline of an ablation on it, trained at the same time."""
    names = ("ladder/small", "ablation/balanced/seed-0")
    assert len({fingerprint(tiny(name=name), "data") for name in names}) == 2
