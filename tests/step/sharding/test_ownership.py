"""Which replica updates which weight."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooodist.step.sharding.ownership import divided

POSITIONS = 3
SIZES = st.lists(st.integers(0, 1000), max_size=30)
REPLICAS = st.integers(1, 5)


def weights_of(sizes: list[int], positions: list[tuple[int, ...]]) -> list[tuple[str, int, tuple]]:
    places = [positions[number % len(positions)] for number in range(len(sizes))]
    return [
        (f"w{n}", size, place) for n, (size, place) in enumerate(zip(sizes, places, strict=True))
    ]


def loads(
    weights: list[tuple[str, int, tuple]], found: dict[str, int], replicas: int
) -> np.ndarray:
    """Bytes of each position and replica."""
    total = np.zeros((POSITIONS, replicas), int)
    for path, size, positions in weights:
        for position in positions:
            total[position, found[path]] += size
    return total


@given(SIZES, REPLICAS)
def test_each_position_is_divided_nearly_evenly(sizes: list[int], replicas: int) -> None:
    """No replica has more than another by more than one weight (list scheduling)."""
    weights = weights_of(sizes, [(0,), (1,), (2,)])
    found = divided(weights, replicas)
    assert found.keys() == {path for path, _, _ in weights}
    for position, load in enumerate(loads(weights, found, replicas)):
        own = [size for _, size, (at,) in weights if at == position]
        assert np.ptp(load) <= max(own, default=0)
        best = max(max(own, default=0), sum(own) / replicas)  # at least, of any division
        assert load.max() <= (2 - 1 / replicas) * best + 1e-9  # Graham, 1966


@given(SIZES, REPLICAS, st.randoms(use_true_random=False))
def test_all_ranks_find_the_same(sizes: list[int], replicas: int, draw: random.Random) -> None:
    """Also of weights that several positions share, in whatever order a rank knows them."""
    weights = weights_of(sizes, [(0,), (0, 1), (1,), (0, 1, 2), (2,)])
    shuffled = draw.sample(weights, len(weights))
    found = divided(weights, replicas)
    assert found == divided(shuffled, replicas)
    assert set(found.values()) <= set(range(replicas))


def test_a_huge_weight_is_not_sliced() -> None:
    weights = [("embedding", 1000, (0,)), *((f"w{n}", 10, (0,)) for n in range(8))]
    found = divided(weights, 2)
    assert found.pop("embedding") == 0
    assert set(found.values()) == {1}


def test_weights_of_several_positions_are_balanced_on_each() -> None:
    """What position 1 has most of decides; then position 0 does."""
    weights = [("a", 9, (1,)), ("b", 9, (1,)), ("c", 5, (0,)), ("shared", 2, (0, 1))]
    found = divided(weights, 2)
    assert (found["a"], found["b"], found["c"]) == (0, 1, 0)
    assert found["shared"] == 1
