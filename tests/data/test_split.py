from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooodist.data.split import split_indices


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=200),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_split_is_a_partition_with_each_classs_share(
    labels: list[int], fraction: float, seed: int
) -> None:
    array = np.array(labels)
    train, validation = split_indices(len(labels), fraction, seed, array)
    assert sorted([*train, *validation]) == list(range(len(labels)))
    assert len(validation) == round(fraction * len(labels))
    actual_fraction = len(validation) / len(labels)
    for label in range(5):
        expected = actual_fraction * np.sum(array == label)
        assert abs(np.sum(array[validation] == label) - expected) <= 1


def test_splits_without_labels_depend_on_the_seed() -> None:
    first, second = split_indices(100, 0.2, 1)[1], split_indices(100, 0.2, 2)[1]
    assert len(first) == len(second) == 20
    assert not np.array_equal(first, second)


def test_a_split_is_the_same_in_every_version() -> None:
    """A resumed run must not train on what was validation before an update."""
    assert split_indices(12, 0.25, 0)[1].tolist() == [0, 1, 4]
    assert split_indices(6, 0.5, 0, np.array([0, 0, 1, 1, 2, 2]))[1].tolist() == [0, 3, 4]
