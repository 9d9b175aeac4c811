"""Held-out loss per domain, in nats per token and bits per byte."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from replicas import ranks
from replicas.models.kernels import cross_entropy_with_z


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Mapping[str, Sequence[Any]], token_bytes: Tensor, device: torch.device
) -> dict[str, float]:
    """Cross-entropy of `model` on fixed batches, dropless and without the z term; the ranks share them out.

    Args:
        batches: per domain, packed batches with `input_ids` and `segment_ids` `[batch, seq]`.
        token_bytes: `[vocab]`, UTF-8 bytes of each token.

    Returns:
        `eval/<domain>/loss` and `/loss_bpb`, and `eval/mean/...`, each domain counting the same.
    """
    was_training = model.training
    model.eval()
    found: dict[str, float] = {}
    for domain, parts in batches.items():
        nats = tokens = text_bytes = 0.0
        for part, counts in _share(parts):
            input_ids = torch.as_tensor(part.input_ids, device=device)
            logits, _ = model(input_ids, torch.as_tensor(part.segment_ids, device=device))
            targets = input_ids[:, 1:].flatten()
            _, per_token = cross_entropy_with_z(logits[:, :-1].flatten(0, 1), targets, 0.0)
            nats += counts * float(per_token.double().sum())
            tokens += counts * targets.numel()
            text_bytes += counts * float(token_bytes[targets].sum())
        sums = torch.tensor((nats, tokens, text_bytes), dtype=torch.float64, device=device)
        nats, tokens, text_bytes = ranks.summed(sums).tolist()
        found[f"eval/{domain}/loss"] = nats / tokens
        found[f"eval/{domain}/loss_bpb"] = bits_per_byte(nats, text_bytes)
    for kind in ("loss", "loss_bpb"):
        found[f"eval/mean/{kind}"] = sum(found[f"eval/{d}/{kind}"] for d in batches) / len(batches)
    model.train(was_training)
    return found


def _share(parts: Sequence[Any]) -> list[tuple[Any, bool]]:
    """The parts that this rank computes, and whether each counts.

    Sharded models need every rank for every forward pass: one without a part left runs some part for nothing.
    """
    size, rank = ranks.world_size(), ranks.rank()
    rounds = range(0, len(parts), size)
    return [(parts[min(i + rank, len(parts) - 1)], i + rank < len(parts)) for i in rounds]


def bits_per_byte(nats: float, text_bytes: float) -> float:
    """Summed nats over summed UTF-8 bytes of what was predicted, in bits: comparable between tokenizers."""
    return nats / (math.log(2) * text_bytes) if text_bytes else math.nan


def evaluation_steps(steps: int, times: int) -> set[int]:
    """Zero-based steps after which to evaluate: the first, then `times` evenly spaced ones, the last included."""
    return {0, *(round(steps * i / times) - 1 for i in range(1, times + 1))} & set(range(steps))
