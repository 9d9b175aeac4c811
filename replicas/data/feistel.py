"""A keyed permutation of 0 ... n-1 that gives any one place at once, without a table.

A Feistel network over two digits of nearly equal base (Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"): a place is a pair (left, right), every round adds a keyed function of one digit to the
other, which can always be taken back. The few pairs beyond n are walked on until they fall inside.
"""

from functools import lru_cache

import numpy as np

ROUNDS = 6

_M1, _M2, _STEP = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


@lru_cache(maxsize=4096)
def mix(*words: int) -> int:
    """A 64-bit key from whole numbers, well mixed, so that neighbouring seeds give unrelated keys.

    SplitMix64 (Steele, Lea and Flood 2014) once per word.
    """
    key = 0
    for word in words:
        key = (key + word * _STEP + _STEP) & _WORD
        key = ((key ^ (key >> 30)) * _M1) & _WORD
        key = ((key ^ (key >> 27)) * _M2) & _WORD
        key ^= key >> 31
    return key


def permute(places: np.ndarray, n: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where each place goes under a permutation of its own.

    Args:
        places: `[k]` int64, each from 0 to below its `n`.
        n: `[k]` int64, how many places are permuted, at least 1.
        keys: `[k]` uint64, which permutation; see `mix`.

    Returns:
        `[k]` int64, each again from 0 to below its `n`.
    """
    if np.any(places < 0) or np.any(places >= n):
        raise ValueError("a place to permute lies outside its range")
    size = n.astype(np.uint64)
    base = np.ceil(np.sqrt(n)).astype(np.uint64)
    values = _rounds(places.astype(np.uint64), base, (size + base - np.uint64(1)) // base, keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        base_left = base[outside]
        base_right = (size[outside] + base_left - np.uint64(1)) // base_left
        values[outside] = _rounds(values[outside], base_left, base_right, keys[outside])
        outside = outside[values[outside] >= size[outside]]
    return values.astype(np.int64)


def _rounds(
    values: np.ndarray, base_left: np.ndarray, base_right: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """One pass of the network over pairs `left * base_right + right`."""
    left, right = values // base_right, values % base_right
    for number in range(0, ROUNDS, 2):
        left = (left + _scramble(right + keys, number) % base_left) % base_left
        right = (right + _scramble(left + keys, number + 1) % base_right) % base_right
    return left * base_right + right


def _scramble(words: np.ndarray, number: int) -> np.ndarray:
    """SplitMix64 of `words`, shifted along its sequence by the number of the round; overflow is meant."""
    words = words + np.uint64((number + 1) * _STEP & _WORD)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_M1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_M2)
    return words ^ (words >> np.uint64(31))
