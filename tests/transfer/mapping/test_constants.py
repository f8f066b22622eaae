"""A constant that depends on the width: what it multiplies is scaled, or the difference is said."""

from __future__ import annotations

import keras
import pytest
from keras import layers

from tests.transfer.models import CLASSES, SAME, VOCABULARY, difference, randomize, tokens, warm

WIDTH, WIDER = 4, 7


def embedded(width: int, *, is_read_twice: bool = False, norm: bool = False) -> keras.Model:
    """Embeddings times the root of their width, as in Gemma."""
    inputs = keras.Input((None,), dtype="int32")
    vectors = layers.Embedding(VOCABULARY, width)(inputs)
    x = vectors * float(width**0.5)
    x = layers.Add()([x, vectors]) if is_read_twice else x
    x = layers.RMSNormalization()(x) if norm else layers.Dense(width, "relu")(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


@pytest.mark.parametrize("norm", [False, True])
def test_what_a_larger_constant_multiplies_is_smaller(norm: bool) -> None:
    parent, child = randomize(embedded(WIDTH, norm=norm)), embedded(WIDER, norm=norm)
    made = warm(child, parent)
    assert made.carried == 1
    assert made.departures == ()
    assert difference(child, parent, tokens()) < SAME


def test_what_something_else_reads_stays_and_the_difference_is_said() -> None:
    parent, child = (embedded(width, is_read_twice=True) for width in (WIDTH, WIDER))
    randomize(parent)
    made = warm(child, parent)
    assert any("multiplies by 2.646, and its partner by 2" in each for each in made.departures)
    assert difference(child, parent, tokens()) > SAME


def test_the_same_constant_changes_nothing() -> None:
    parent, same = randomize(embedded(WIDTH)), embedded(WIDTH)
    assert {each.action for each in warm(same, parent).report} == {"copied"}
    assert difference(same, parent, tokens()) == 0
