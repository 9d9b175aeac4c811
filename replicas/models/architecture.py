"""What every architecture provides: a model, its parameter counts, and how a shrunk copy differs.

A module under `replicas.models` is an architecture if it has `Config` (frozen, with `d_model`, `vocab_size`,
`seq_len`, `z_loss`), `Model` (a `LanguageModel` made from it), `shrink`, `count_parameters` and
`train_flops_per_token`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

C = TypeVar("C")


class LanguageModel(nn.Module):
    """What training asks of a model."""

    config: Any

    def initialise(self, seed: int) -> None:
        """Draw all parameters by the published rule."""
        raise NotImplementedError

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> tuple[Tensor, list[Any]]:
        """`input_ids`, `segment_ids` `[batch, seq]` -> logits `[batch, seq, vocab]`, one routing per MoE layer."""
        raise NotImplementedError

    def set_router_biases(self, routings: list[Any]) -> None:
        """Called after each optimizer step with what its batch did; a dense model has nothing to do.

        One routing per layer, that of all micro-batches of this rank together; every rank calls.
        """

    def blocks(self) -> list[nn.Module]:
        """The layers, which training shards, recomputes and compiles one by one."""
        return list(self.get_submodule("model.layers").children())

    def experts(self) -> list[nn.Module]:
        """The routed experts, one module per MoE layer; a dense model has none.

        Each has parameters `[n_experts, ...]` and computes with the part of them on this rank once the ranks that
        share them are its `group`; see `replicas.models.expert_parallel`.
        """
        return []


@dataclass(frozen=True)
class Change:
    """A ratio or constant that the shrunk model could not keep."""

    name: str
    published: str
    here: str
    why: str


@dataclass(frozen=True)
class Shrunk(Generic[C]):
    """A shrunk configuration, with what it keeps of the published one and what it does not."""

    config: C
    kept: tuple[str, ...]
    changed: tuple[Change, ...]


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by the published counting rule: `total` and `active` count matrices and embeddings.

    `active` leaves the embeddings and the experts a token does not visit out; `other` is what the rule passes
    over (gates, norms, convolutions).
    """

    total: int
    active: int
    embedding: int
    lm_head: int
    other: int


def compare_ratios(
    published: C, here: C, ratios: Mapping[str, Callable[[C], Any]], why: Mapping[str, str]
) -> Shrunk[C]:
    """`here` with what it keeps of `published` and what it changes.

    Args:
        ratios: by name, what to compare; equal when it prints equal.
        why: reason of a change, by the ratio's name; one not listed was set by the profile.
    """
    kept, changed = [], []
    for name, ratio in ratios.items():
        there, now = str(ratio(published)), str(ratio(here))
        if there == now:
            kept.append(f"{name} {now}")
        else:
            changed.append(Change(name, there, now, why.get(name, "set by the profile")))
    return Shrunk(here, tuple(kept), tuple(changed))
