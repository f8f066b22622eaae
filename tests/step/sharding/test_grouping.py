"""Items are divided into groups of one kind, each up to a size."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ooodist.step.sharding.grouping import divide

ITEMS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)))


@given(ITEMS, st.integers(1, 20))
def test_divides(items: list[tuple[str, int]], most: int) -> None:
    numbered = list(enumerate(items))
    groups = divide(numbered, lambda item: item[1][0], lambda item: item[1][1], most)
    assert sorted(itertools.chain(*groups)) == numbered  # each is in one group
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    for group in groups:
        assert group == sorted(group)
        assert len({key for _, (key, _) in group}) == 1
        assert len(group) == 1 or sum(size for _, (_, size) in group) <= most
    for key in "ab":  # no bucket has room for what begins the next one
        own = [group for group in groups if group[0][1][0] == key]
        for one, other in itertools.pairwise(own):
            assert sum(size for _, (_, size) in one) + other[0][1][1] > most
        assert list(itertools.chain(*own)) == [item for item in numbered if item[1][0] == key]
