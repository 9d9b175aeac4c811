import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.data.feistel import mix, permute

KEYS = st.integers(0, 2**64 - 1)


def one_key(places: np.ndarray, n: int, key: int) -> np.ndarray:
    return permute(places, np.full(len(places), n), np.full(len(places), key, dtype=np.uint64))


@given(n=st.integers(1, 3000), key=KEYS)
def test_every_place_is_hit_exactly_once(n: int, key: int) -> None:
    assert sorted(one_key(np.arange(n), n, key)) == list(range(n))


@given(n=st.integers(1, 10**12), key=KEYS, place=st.integers(0, 10**12 - 1))
def test_large_ranges_stay_inside_and_do_not_depend_on_their_neighbours(n: int, key: int, place: int) -> None:
    places = np.array([place % n, 0, n - 1])
    together = one_key(places, n, key)
    assert np.all((together >= 0) & (together < n))
    assert [int(one_key(places[i : i + 1], n, key)[0]) for i in range(3)] == together.tolist()


def test_ranges_and_keys_may_differ_from_place_to_place() -> None:
    n = np.array([5, 7, 1000])
    keys = np.array([1, 2, 3], dtype=np.uint64)
    places = np.array([4, 0, 999])
    each = [int(one_key(places[i : i + 1], int(n[i]), int(keys[i]))[0]) for i in range(3)]
    assert permute(places, n, keys).tolist() == each


def test_a_place_goes_everywhere_alike_over_keys() -> None:
    """Place 3 of 10 over 20,000 keys: chi-squared (9 degrees) below its 1 - 1e-6 quantile."""
    keys = np.array([mix(0, i) for i in range(20_000)], dtype=np.uint64)
    counts = np.bincount(permute(np.full(20_000, 3), np.full(20_000, 10), keys), minlength=10)
    assert ((counts - 2000) ** 2 / 2000).sum() < 45.1


def test_neighbours_are_scattered() -> None:
    """Mean distance of two random places of n is n / 3."""
    moved = one_key(np.arange(9745), 9745, mix(7))
    assert np.abs(np.diff(moved)).mean() == pytest.approx(9745 / 3, rel=0.05)


def test_mix_gives_unrelated_keys_for_neighbouring_words() -> None:
    keys = {mix(seed, use, number) for seed in range(10) for use in range(10) for number in range(10)}
    assert len(keys) == 1000
    assert mix(1, 0) != mix(0, 1)


@pytest.mark.parametrize("place", [-1, 10])
def test_a_place_outside_is_refused(place: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        one_key(np.array([place]), 10, 0)
