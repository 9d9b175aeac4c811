"""Held-out loss against a model that is known: one that says what it is told to say."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from replicas.data.mixture import Batch
from replicas.training.evaluation import bits_per_byte, evaluate, evaluation_steps

TOKEN_BYTES = torch.tensor([0, 1, 2, 4], dtype=torch.int32)


class Bigram(nn.Module):
    """Logits from a table of the current token alone; notes in which mode it was asked."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table, self.modes = table, set[bool]()

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> tuple[Tensor, list[Any]]:
        self.modes.add(self.training)
        return self.table[input_ids], []


def batch(*rows: list[int]) -> Batch:
    ids = np.array(rows, dtype=np.int64)
    return Batch(ids, np.zeros_like(ids, dtype=np.int32), np.zeros(len(rows), dtype=np.int64))


def test_tokens_count_alike_within_a_domain_and_domains_alike_in_the_mean() -> None:
    """The second batch of `long` is smaller: a mean of batch means would weigh its tokens double."""
    probability = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]])
    model = Bigram(probability.double().log() + 5)  # a constant in all logits changes nothing
    batches = {"long": [batch([0, 1, 2], [3, 3, 3]), batch([1, 0, 3])], "short": [batch([2, 2, 0])]}
    found = evaluate(model, batches, TOKEN_BYTES, torch.device("cpu"))
    pairs = {"long": [(0, 1), (1, 2), (3, 3), (3, 3), (1, 0), (0, 3)], "short": [(2, 2), (2, 0)]}
    size = {"long": 1 + 2 + 4 + 4 + 0 + 4, "short": 2 + 0}
    for domain, predicted in pairs.items():
        nats = -sum(math.log(probability[a, b]) for a, b in predicted)
        assert found[f"eval/{domain}/loss"] == pytest.approx(nats / len(predicted), rel=1e-6)
        assert found[f"eval/{domain}/loss_bpb"] == pytest.approx(nats / math.log(2) / size[domain], rel=1e-6)
    for kind in ("loss", "loss_bpb"):
        each = [found[f"eval/{domain}/{kind}"] for domain in pairs]
        assert found[f"eval/mean/{kind}"] == pytest.approx(sum(each) / 2)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_asked_in_evaluation_and_given_back_as_it_was(training: bool) -> None:
    model = Bigram(torch.zeros(4, 4)).train(training)
    evaluate(model, {"d": [batch([0, 1, 2])]}, TOKEN_BYTES, torch.device("cpu"))
    assert model.modes == {False}
    assert model.training == training


def test_a_uniform_guess_over_bytes_is_eight_bits() -> None:
    assert bits_per_byte(10 * math.log(256), 10) == pytest.approx(8)
    assert math.isnan(bits_per_byte(3.0, 0))


@pytest.mark.parametrize(
    ("steps", "times", "expected"),
    [
        (100, 4, {0, 24, 49, 74, 99}),
        (100, 1, {0, 99}),
        (1, 4, {0}),
        (3, 20, {0, 1, 2}),
        (30, 7, {0, 3, 8, 12, 16, 20, 25, 29}),
    ],
)
def test_evaluation_steps(steps: int, times: int, expected: set[int]) -> None:
    assert evaluation_steps(steps, times) == expected
