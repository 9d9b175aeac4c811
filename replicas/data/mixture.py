"""Deterministic batches from weighted domains: any step at once, the same for any number of ranks.

As in the published loader (block shuffle, Feistel permutation, no cursor in the checkpoint), the order is a
pure function of the step. The stream of sequences is cut into blocks; every block holds the domains in the
exact shares of the weights, in a permuted order of its own. Each sequence is one stretch of one domain's
documents laid end to end; within a domain the stretches come in a permuted order, another one in each epoch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.configuration import InputError
from replicas.data.feistel import mix, permute
from replicas.data.shards import Shards, Split, open_shards

BLOCK_SEQUENCES = 1000
"""Sequences per block: weights with three decimals are held exactly in every block."""

SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Batch:
    """Packed sequences.

    Attributes:
        input_ids: `[batch, seq]` int64 token ids.
        segment_ids: `[batch, seq]` int32, number of the document within the sequence, from 0.
        domain_ids: `[batch]` int64, index into the mixture's `domains`.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    domain_ids: np.ndarray


class PackedMixture:
    """Random access to the training batches of one mixture over opened shards.

    Attributes:
        domains: names of all domains of the shards, the order of `Batch.domain_ids`.
        block_counts: `[domains]` sequences of each domain in one block.
        sequences: `[domains]` whole sequences in one epoch of each domain; fewer than `seq_len` tokens at the
            end of a domain are left out.
    """

    def __init__(
        self,
        shards: Shards | str | Path,
        weights: Mapping[str, float],
        seq_len: int,
        batch_sequences: int,
        seed: int,
        name: str = "mixture",
        block_sequences: int = BLOCK_SEQUENCES,
    ) -> None:
        """Check the mixture against the shards.

        Args:
            weights: share of the sequences of each domain; a domain not named has weight 0.
            seq_len: tokens per sequence.
            batch_sequences: sequences per step over all ranks.
            seed: decides the order of domains and of the stretches within each.
            name: what the mixture is called in error messages.

        Raises:
            InputError: an unknown domain, weights that are negative or do not sum to 1, a weight too small
                for a block, or a domain with less data than one sequence.
        """
        self.shards = shards if isinstance(shards, Shards) else open_shards(shards)
        self.domains = self.shards.domains
        if min(seq_len, batch_sequences, block_sequences) < 1:
            raise InputError(f"{name}: seq_len, batch_sequences and block_sequences must be at least 1")
        self.seq_len, self.batch_sequences, self.block_sequences = seq_len, batch_sequences, block_sequences
        shares = _checked_weights(weights, self.domains, name)
        self.block_counts = largest_remainder(shares, block_sequences)
        self._block_ends = np.cumsum(self.block_counts)
        self.sequences = np.array([len(self._split(d, "train").tokens) // seq_len for d in self.domains])
        for domain, share, count, stretches in zip(
            self.domains, shares, self.block_counts, self.sequences, strict=True
        ):
            if share > 0 and count == 0:
                raise InputError(
                    f"{name}: weight {share} of {domain} is too small for a block of {block_sequences}"
                )
            if share > 0 and stretches == 0:
                tokens = len(self._split(domain, "train").tokens)
                raise InputError(
                    f"{name}: {domain} has {tokens} training tokens, fewer than seq_len {seq_len}"
                )
        self._seed = seed

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """The batch of optimizer step `step` (from 0), or the slice of it that `rank` of `world_size` feeds.

        Raises:
            InputError: the batch cannot be shared out evenly over `world_size`.
        """
        if step < 0 or not 0 <= rank < world_size:
            raise ValueError(f"step {step}, rank {rank} of {world_size}: out of range")
        if self.batch_sequences % world_size:
            raise InputError(
                f"a batch of {self.batch_sequences} sequences cannot be split over {world_size} ranks"
            )
        local = self.batch_sequences // world_size
        places = step * self.batch_sequences + rank * local + np.arange(local, dtype=np.int64)
        domain_ids, draws = self._draws(places)
        stretches = self._stretches(domain_ids, draws)
        return self._pack("train", domain_ids, stretches)

    def realised_shares(self, first_step: int, last_step: int) -> dict[str, float]:
        """Part of the sequences that each domain gave in steps `first_step` to `last_step`, both included."""
        first, end = first_step * self.batch_sequences, (last_step + 1) * self.batch_sequences
        if not 0 <= first < end:
            raise ValueError(f"no steps from {first_step} to {last_step}")
        counts = self._drawn_before(end) - self._drawn_before(first)
        return {
            domain: int(count) / (end - first) for domain, count in zip(self.domains, counts, strict=True)
        }

    def epochs(self, last_step: int) -> dict[str, float]:
        """How often each domain's training data has been gone through when `last_step` is done."""
        counts = self._drawn_before((last_step + 1) * self.batch_sequences)
        return {
            domain: int(count) / max(1, int(stretches))
            for domain, count, stretches in zip(self.domains, counts, self.sequences, strict=True)
        }

    def evaluation_batches(self, domain: str, n_sequences: int, batch_sequences: int) -> Iterator[Batch]:
        """The first `n_sequences` held-out sequences of `domain`; the last batch may be smaller.

        Raises:
            InputError: no such domain, or fewer held-out sequences than asked for.
        """
        if domain not in self.domains:
            raise InputError(
                f"no domain {domain!r} to evaluate on; the shards have {', '.join(self.domains)}"
            )
        there = len(self._split(domain, "eval").tokens) // self.seq_len
        if not 0 < n_sequences <= there:
            raise InputError(
                f"{domain} has {there} held-out sequences of {self.seq_len} tokens, {n_sequences} were asked "
                "for; ask for fewer, or raise the evaluation fraction of the shards"
            )
        d = self.domains.index(domain)
        for first in range(0, n_sequences, batch_sequences):
            chosen = np.arange(first, min(first + batch_sequences, n_sequences), dtype=np.int64)
            yield self._pack("eval", np.full(len(chosen), d, dtype=np.int64), chosen * there // n_sequences)

    def _split(self, domain: str, split: str) -> Split:
        return self.shards.splits[domain][split]

    def _draws(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For places in the stream, the domain and which draw from that domain it is, counted from 0.

        Within a block the draws of a domain are numbered in the order of its slots, not of its places; over
        whole blocks every number comes once.
        """
        blocks, within = np.divmod(places, self.block_sequences)
        slots = permute(within, np.full_like(within, self.block_sequences), self._keys(0, blocks))
        domain_ids = self._block_ends.searchsorted(slots, side="right")
        counts = self.block_counts[domain_ids]
        return domain_ids, blocks * counts + slots - (self._block_ends[domain_ids] - counts)

    def _stretches(self, domain_ids: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Which stretch of its domain each draw takes: all of them in a permuted order, epoch by epoch."""
        n = self.sequences[domain_ids]
        epochs, within = np.divmod(draws, n)
        return permute(within, n, self._keys(1 + domain_ids, epochs))

    def _keys(self, uses: np.ndarray | int, numbers: np.ndarray) -> np.ndarray:
        """One key per permutation: what it is for (0 the order of domains, 1 + d domain d) and its number."""
        pairs = zip(np.broadcast_to(uses, numbers.shape).tolist(), numbers.tolist(), strict=True)
        return np.array([mix(self._seed, use, number) for use, number in pairs], dtype=np.uint64)

    def _drawn_before(self, place: int) -> np.ndarray:
        """`[domains]` sequences of each domain among the first `place` of the stream."""
        blocks, rest = divmod(place, self.block_sequences)
        domain_ids, _ = self._draws(blocks * self.block_sequences + np.arange(rest, dtype=np.int64))
        return blocks * self.block_counts + np.bincount(domain_ids, minlength=len(self.domains))

    def _pack(self, split: str, domain_ids: np.ndarray, stretches: np.ndarray) -> Batch:
        input_ids = np.empty((len(domain_ids), self.seq_len), dtype=np.int64)
        segment_ids = np.empty((len(domain_ids), self.seq_len), dtype=np.int32)
        for row, (d, stretch) in enumerate(zip(domain_ids, stretches, strict=True)):
            data = self._split(self.domains[d], split)
            start, end = int(stretch) * self.seq_len, (int(stretch) + 1) * self.seq_len
            input_ids[row] = data.tokens[start:end]
            # few documents start inside the stretch: fill in their numbers instead of looking up every token
            first, last = data.offsets.searchsorted((start + 1, end))
            segment_ids[row] = 0
            for number, offset in enumerate(data.offsets[first:last].tolist(), start=1):
                segment_ids[row, offset - start :] = number
        return Batch(input_ids, segment_ids, domain_ids)


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """`total` shared out by `shares` (which sum to 1): the floors, then one each to the largest remainders.

    Ties go to the earlier one. `[n]` int64.
    """
    # 1e-9: 0.3 * 10 must count as 3 and not as 2.9999999999999996
    quotas = shares * total
    floors = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-(quotas - floors), kind="stable")
    floors[order[: total - int(floors.sum())]] += 1
    return floors


def _checked_weights(weights: Mapping[str, float], domains: tuple[str, ...], name: str) -> np.ndarray:
    unknown = [domain for domain in weights if domain not in domains]
    if unknown:
        raise InputError(f"{name}: no domain {', '.join(unknown)}; the shards have {', '.join(domains)}")
    for domain, weight in weights.items():
        if not 0 <= weight <= 1:
            raise InputError(f"{name}: weight {weight} of {domain} is not between 0 and 1")
    total = sum(weights.values())
    if abs(total - 1) > SUM_TOLERANCE:
        raise InputError(f"{name}: the weights sum to {total:g}, not 1")
    return np.array([weights.get(domain, 0.0) for domain in domains]) / total
