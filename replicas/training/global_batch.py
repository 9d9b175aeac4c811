"""From what each rank saw of each micro-batch to what the whole batch of a step was."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from replicas import ranks


@dataclass(frozen=True)
class Part:
    """One forward pass; all parts of a batch have the same number of tokens.

    Attributes:
        loss: mean over its tokens of what is minimised, without gradient.
        nats, text_bytes: sums of the cross-entropy, and of the UTF-8 bytes of the predicted tokens.
        routings: one per MoE layer.
    """

    loss: Tensor
    nats: Tensor
    text_bytes: Tensor
    routings: list[Any]


def joined(parts: Sequence[Part]) -> Part:
    """The micro-batches of one rank as one part."""
    if len(parts) == 1:
        return parts[0]
    return Part(
        loss=torch.stack([part.loss for part in parts]).mean(),
        nats=torch.stack([part.nats for part in parts]).sum(),
        text_bytes=torch.stack([part.text_bytes for part in parts]).sum(),
        routings=[_joined_routing(layer) for layer in zip(*(part.routings for part in parts), strict=True)],
    )


def _joined_routing(routings: Sequence[Any]) -> Any:
    means = {
        name: torch.stack([getattr(routing, name) for routing in routings]).mean(0)
        for name in ("share", "probability", "router_z_loss", "drop_fraction")
    }
    rows = {
        name: torch.cat([getattr(routing, name) for routing in routings])
        for name in ("selected", "combine", "margins")
    }
    return replace(routings[0], **means, **rows)


def batch_metrics(part: Part) -> dict[str, Tensor]:
    """What is logged of the global batch, of which this rank has `part`: loss, bits per byte, router statistics.

    One all-reduce; the device is not waited for. Router statistics are means over layers of what the public run
    logs, each computed from the load of the whole batch; a dense model has none.
    """
    names = ("share", "probability", "router_z_loss", "drop_fraction")
    of_layers = [getattr(routing, name) for routing in part.routings for name in names]
    loss, nats, text_bytes, *of_layers = ranks.averaged([part.loss, part.nats, part.text_bytes, *of_layers])
    metrics = {"train/loss": loss, "train/loss_bpb": nats / (text_bytes * math.log(2))}
    if not part.routings:
        return metrics
    of_each = zip(*[iter(of_layers)] * len(names), strict=True)  # layer by layer
    routings = [
        replace(routing, **dict(zip(names, means, strict=True)))
        for routing, means in zip(part.routings, of_each, strict=True)
    ]
    logged = {
        "router/entropy": "entropy",
        "router/load_balancing_loss": "load_balancing_loss",
        "router/z_loss": "router_z_loss",
        "router/drop_fraction": "drop_fraction",
    }
    means = {key: torch.stack([getattr(r, name) for r in routings]).mean() for key, name in logged.items()}
    return metrics | means
