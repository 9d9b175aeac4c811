from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from replicas.data.mixture import PackedMixture, largest_remainder
from replicas.data.shards import Shards

HALVES = {"code": 0.5, "prose": 0.5}


def mixture(shards: Shards, weights: dict[str, float] = HALVES, **changes: int) -> PackedMixture:
    sizes = {"seq_len": 32, "batch_sequences": 6, "seed": 0, "block_sequences": 20} | changes
    return PackedMixture(shards, weights, **sizes)


def stretches_of(mixed: PackedMixture, sequences: int) -> list[tuple[int, int]]:
    """Domain and number of the stretch of the first `sequences` sequences."""
    domain_ids, draws = mixed._draws(np.arange(sequences))
    return list(zip(domain_ids.tolist(), mixed._stretches(domain_ids, draws).tolist(), strict=True))


@settings(deadline=None, max_examples=50)
@given(step=st.integers(0, 10**9), world_size=st.sampled_from([1, 2, 3, 6]), seed=st.integers(0, 2**31))
def test_ranks_together_feed_the_global_batch(shards: Shards, step: int, world_size: int, seed: int) -> None:
    mixed = mixture(shards, seed=seed)
    whole = mixed.batch(step)
    parts = [mixed.batch(step, rank, world_size) for rank in range(world_size)]
    for name in ("input_ids", "segment_ids", "domain_ids"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name)
        )


def test_any_step_is_the_same_without_the_steps_before(shards: Shards) -> None:
    in_order = mixture(shards)
    batches = [in_order.batch(step) for step in range(30)]
    for step in (29, 3, 17):
        np.testing.assert_array_equal(mixture(shards).batch(step).input_ids, batches[step].input_ids)


def test_shapes_and_types(shards: Shards) -> None:
    batch = mixture(shards).batch(0)
    assert (batch.input_ids.shape, batch.input_ids.dtype) == ((6, 32), np.int64)
    assert (batch.segment_ids.shape, batch.segment_ids.dtype) == ((6, 32), np.int32)
    assert (batch.domain_ids.shape, batch.domain_ids.dtype) == ((6,), np.int64)


def test_another_seed_gives_another_order(shards: Shards) -> None:
    assert stretches_of(mixture(shards), 100) != stretches_of(mixture(shards, seed=1), 100)


def test_every_stretch_comes_once_per_epoch(shards: Shards) -> None:
    mixed = mixture(shards, {"code": 0.0, "prose": 1.0}, block_sequences=1)
    n = int(mixed.sequences[1])
    first, second = (stretches_of(mixed, 2 * n)[i * n : (i + 1) * n] for i in (0, 1))
    assert sorted(first) == sorted(second) == [(1, i) for i in range(n)]
    assert first != second


def test_over_whole_blocks_no_stretch_comes_more_than_once_more_than_another(shards: Shards) -> None:
    mixed = mixture(shards, {"code": 0.3, "prose": 0.7}, block_sequences=10)
    counts = Counter(stretches_of(mixed, 10 * 100))
    for d, n in enumerate(mixed.sequences.tolist()):
        seen = [counts[d, stretch] for stretch in range(n)]
        assert max(seen) - min(seen) <= 1


def test_an_epoch_holds_every_token_but_a_tail_shorter_than_a_sequence(shards: Shards) -> None:
    mixed = mixture(shards, {"code": 0.0, "prose": 1.0}, block_sequences=1, batch_sequences=1)
    tokens = shards.splits["prose"]["train"].tokens
    n = int(mixed.sequences[1])
    assert 0 <= len(tokens) - n * 32 < 32
    fed = np.concatenate([mixed.batch(step).input_ids.ravel() for step in range(n)])
    np.testing.assert_array_equal(
        np.bincount(fed, minlength=300), np.bincount(tokens[: n * 32], minlength=300)
    )


def test_segments_are_the_documents(shards: Shards) -> None:
    mixed = mixture(shards, seq_len=200)
    several = 0
    for step in range(20):
        batch = mixed.batch(step)
        # a document ends with <|endoftext|> (0): the next token begins the next segment
        ends = np.cumsum(batch.input_ids == 0, axis=1)
        expected = np.concatenate([np.zeros((6, 1), dtype=int), ends[:, :-1]], axis=1)
        np.testing.assert_array_equal(batch.segment_ids, expected)
        several += int((expected[:, -1] > 1).sum())
    assert several > 0


@given(
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any),
    total=st.integers(1, 5000),
)
def test_largest_remainder_is_within_one_of_the_exact_share(weights: list[int], total: int) -> None:
    shares = np.array(weights) / sum(weights)
    counts = largest_remainder(shares, total)
    assert counts.sum() == total
    assert np.all(np.abs(counts - shares * total) < 1)
    assert not counts[np.array(weights) == 0].any()


def test_largest_remainder_on_the_textbook_example() -> None:
    """The example with which the method is usually explained: 100,000 votes, 10 seats, Hare quota."""
    votes = np.array([47_000, 16_000, 15_900, 12_000, 6_000, 3_100])
    assert largest_remainder(votes / votes.sum(), 10).tolist() == [5, 2, 1, 1, 1, 0]


@settings(deadline=None)
@given(first=st.integers(0, 50), length=st.integers(1, 50))
def test_realised_shares_are_those_of_the_batches(shards: Shards, first: int, length: int) -> None:
    mixed = mixture(shards, {"code": 0.3, "prose": 0.7})
    fed = np.concatenate([mixed.batch(step).domain_ids for step in range(first, first + length)])
    shares = mixed.realised_shares(first, first + length - 1)
    assert shares["prose"] == pytest.approx(float((fed == 1).mean()), abs=1e-12)
    assert sum(shares.values()) == pytest.approx(1)


def test_whole_blocks_hold_the_weights_exactly(shards: Shards) -> None:
    mixed = mixture(shards, {"code": 0.137, "prose": 0.863}, block_sequences=1000, batch_sequences=8)
    assert mixed.realised_shares(0, 124) == {"code": 0.137, "prose": 0.863}
    assert mixed.realised_shares(125, 249) == {"code": 0.137, "prose": 0.863}
    assert mixed.epochs(124)["code"] == 137 / mixed.sequences[0]


def test_a_domain_of_weight_zero_gives_nothing(shards: Shards) -> None:
    mixed = mixture(shards, {"prose": 1.0})
    assert mixed.realised_shares(0, 100) == {"code": 0.0, "prose": 1.0}


def test_evaluation_batches_are_fixed_and_held_out(shards: Shards) -> None:
    batches = list(mixture(shards).evaluation_batches("code", 7, 3))
    again = list(mixture(shards, seed=9).evaluation_batches("code", 7, 3))
    assert [batch.input_ids.shape for batch in batches] == [(3, 32), (3, 32), (1, 32)]
    tokens = np.concatenate([batch.input_ids for batch in batches]).ravel()
    held_out = shards.splits["code"]["eval"].tokens
    there = len(held_out) // 32
    starts = [32 * (i * there // 7) for i in range(7)]
    assert len(set(starts)) == 7
    assert starts[-1] >= len(held_out) // 2
    np.testing.assert_array_equal(tokens, np.concatenate([held_out[s : s + 32] for s in starts]))
    np.testing.assert_array_equal(tokens, np.concatenate([batch.input_ids for batch in again]).ravel())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"code": 0.5, "prose": 0.4}, "tilted: the weights sum to 0.9, not 1"),
        ({"code": 0.5, "poems": 0.5}, "tilted: no domain poems; the shards have code, prose"),
        ({"code": 1.5, "prose": -0.5}, "tilted: weight 1.5 of code is not between 0 and 1"),
        ({"code": float("nan"), "prose": 0.5}, "tilted: weight nan of code is not between 0 and 1"),
        ({"code": 0.001, "prose": 0.999}, "tilted: weight 0.001 of code is too small for a block of 100"),
    ],
)
def test_wrong_weights_are_refused(shards: Shards, weights: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PackedMixture(shards, weights, 32, 4, seed=0, name="tilted", block_sequences=100)


def test_impossible_sizes_are_refused(shards: Shards) -> None:
    with pytest.raises(InputError, match=r"code has \d+ training tokens, fewer than seq_len 10000000"):
        mixture(shards, seq_len=10_000_000)
    with pytest.raises(InputError, match="6 sequences cannot be split over 4 ranks"):
        mixture(shards).batch(0, rank=0, world_size=4)
    with pytest.raises(
        InputError, match=r"code has \d+ held-out sequences of 32 tokens, 99999 were asked for"
    ):
        list(mixture(shards).evaluation_batches("code", 99_999, 4))
    with pytest.raises(InputError, match="no domain 'poems'"):
        list(mixture(shards).evaluation_batches("poems", 1, 4))
