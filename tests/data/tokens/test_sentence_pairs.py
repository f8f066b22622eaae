"""Pairs of segments: laws that hold for any documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooodist.data.tokens.sentence_pairs import Document, sentence_pairs


def documents_of(lengths: list[list[int]]) -> list[Document]:
    """Documents of sentences of these lengths, one behind the other."""
    found, end = [], 0
    for sentences in lengths:
        begin, ends = end, []
        for length in sentences:
            end += length
            ends.append(end)
        found.append(Document(begin, tuple(ends)))
    return found


def owner(documents: list[Document], token: int) -> int:
    return next(number for number, each in enumerate(documents) if token < each.ends[-1])


LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=6)


@given(LENGTHS, st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_laws(lengths: list[list[int]], most: int, seed: int) -> None:
    documents = documents_of(lengths)
    pairs = sentence_pairs(documents, most, seed)
    np.testing.assert_array_equal(pairs, sentence_pairs(documents, most, seed))
    assert len(pairs) >= len(documents)
    last = -1
    for a, a_length, b, b_length, is_random in pairs.tolist():
        assert a_length >= 1
        assert b_length >= 1
        assert a_length + b_length <= most
        of_a, of_b = owner(documents, a), owner(documents, b)
        # Each segment is a piece of one document.
        assert owner(documents, a + a_length - 1) == of_a
        assert owner(documents, b + b_length - 1) == of_b
        assert (of_a != of_b) == bool(is_random)
        if not is_random:
            assert b >= a + a_length
        # Pairs go through the documents in their order.
        assert a > last or of_a == owner(documents, last)
        last = max(last, a)


def test_half_are_random_and_all_text_is_used() -> None:
    documents = documents_of([[7, 5, 9, 4] * 50 for _ in range(10)])
    pairs = sentence_pairs(documents, 60, seed=1)
    assert 0.4 < pairs[:, 4].mean() < 0.6
    sums = pairs[:, 1] + pairs[:, 3]
    assert 0.85 < np.mean(sums > 50) < 0.97  # all but the short ones
    used = np.zeros(documents[-1].ends[-1], bool)
    for a, a_length, b, b_length, _ in pairs:
        used[a : a + a_length] = used[b : b + b_length] = True
    assert used.mean() > 0.9  # what was cut off is not


def test_a_document_of_one_sentence_is_followed_by_another() -> None:
    pairs = sentence_pairs(documents_of([[5], [6]]), 8, seed=0)
    assert pairs[:, 4].tolist() == [1, 1]
    assert (pairs[:, 1] + pairs[:, 3] <= 8).all()
