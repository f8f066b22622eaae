"""Described layers in models: wider and deeper, in blocks, and of which a description is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from keras import layers, ops

from ooodist.transfer.graph.description import DESCRIBED, LayerDescription, describe_layer
from ooodist.transfer.graph.keras_graph import graph_of
from tests.thorough import few
from tests.transfer import own_layers
from tests.transfer.models import (
    CLASSES,
    SAME,
    chain,
    difference,
    in_order,
    randomize,
    sequences,
    warm,
)
from tests.transfer.own_layers import (
    ATTENTION,
    NORM_OF_ANY_WIDTH,
    SCALE,
    Attention,
    Cached,
    Norm,
    Scale,
)


@pytest.fixture(autouse=True, scope="module")
def _described() -> Iterator[None]:
    before = dict(DESCRIBED)
    own_layers.describe()
    describe_layer(Norm, NORM_OF_ANY_WIDTH)
    yield
    DESCRIBED.clear()
    DESCRIBED.update(before)


class Block(layers.Layer):  # type: ignore[misc, unused-ignore]
    """A block that needs to know the sizes of its input, for a causal mask."""

    def __init__(self, heads: int, key: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm, self.attention, self.scale = Norm(), Cached(heads, key), Scale(offset=True)

    def build(self, shape: Any) -> None:
        self.norm.build(shape)
        self.attention.build(shape, shape)
        self.scale.build(shape)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, inputs: Any) -> Any:
        batch, length, _ = ops.shape(inputs)
        order = ops.arange(length)
        mask = ops.broadcast_to(order[:, None] >= order[None, :], (batch, length, length))
        x = self.norm(inputs)
        return inputs + self.scale(self.attention(x, x, attention_mask=ops.cast(mask, "int32")))


def blocks(width: int, count: int = 1, heads: int = 2) -> keras.Model:
    parts = [Block(heads, 3) for _ in range(count)]
    return chain(layers.Dense(width), *parts, Norm(), layers.Dense(CLASSES), shape=(None, 6))


@pytest.mark.parametrize(
    "child",
    [lambda: blocks(8), lambda: blocks(8, heads=3), lambda: blocks(4, count=2)],
    ids=["wider", "more heads", "deeper"],
)
def test_blocks_with_described_layers_compute_the_same(child: Any) -> None:
    parent, model = randomize(blocks(4)), child()
    made = warm(model, parent)
    assert made.departures == ()
    assert difference(model, parent, sequences()) < SAME
    assert not any((node.settings or {}).get("unknown") for node in graph_of(model).nodes)


def attending(width: int, groups: int, each: int, key: int, value: int) -> keras.Model:
    one, two = keras.Input((5, 6)), keras.Input((4, 6))
    x, y = layers.Dense(width)(one), layers.Dense(width + 1)(two)
    x = layers.RMSNormalization()(Attention(groups, each, key, value)(x, y))
    return keras.Model([one, two], layers.Dense(CLASSES)(x))


SIZES = st.tuples(*[st.integers(1, 4)] * 5)


@few(6, phases=(Phase.explicit, Phase.generate))
@given(SIZES, SIZES)
def test_attention_of_any_larger_sizes_is_exact(
    sizes: tuple[int, ...], more: tuple[int, ...]
) -> None:
    parent = randomize(attending(*sizes))
    child = attending(*(one + other for one, other in zip(sizes, more, strict=True)))
    made = warm(child, parent, in_order)
    assert made.carried == 1
    assert made.departures == ()
    assert difference(child, parent, [sequences(), sequences(length=4)]) < SAME


def test_a_description_that_does_not_fit_is_said_and_not_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build(width: int) -> keras.Model:
        return chain(layers.Dense(width), Scale(), layers.Dense(CLASSES), shape=(5, 6))

    parent, child = randomize(build(4)), build(8)
    describe_layer(Scale, LayerDescription({"gamma": "x x"}, output="x"))
    try:
        with caplog.at_level("WARNING", "ooodist"):
            made = warm(child, parent)
    finally:
        describe_layer(Scale, SCALE)
    assert (
        "gamma has 1 axes, and 2 are named; it is taken as a layer of which nothing" in caplog.text
    )
    assert any("as nothing is known of layer scale" in each for each in made.departures)


def test_units_that_are_averaged_unequally_are_said() -> None:
    """What is not called a root-mean-square norm is exact for whole multiples alone."""

    def build(width: int) -> keras.Model:
        return chain(layers.Dense(width), Norm(), layers.Dense(CLASSES), shape=(5, 6))

    parent, child = randomize(build(4)), build(6)
    describe_layer(Norm, replace(NORM_OF_ANY_WIDTH, kind=""))
    try:
        made = warm(child, parent)
    finally:
        describe_layer(Norm, NORM_OF_ANY_WIDTH)
    assert any("takes the mean of units of which some" in each for each in made.departures)
    assert difference(child, parent, sequences()) > SAME
    made = warm(child, parent)
    assert made.departures == ()
    assert difference(child, parent, sequences()) < SAME


def test_an_input_that_is_not_described_makes_the_layer_unknown() -> None:
    def build(width: int) -> keras.Model:
        one, two = keras.Input((5, 6)), keras.Input((4, 6))
        x, y = layers.Dense(width)(one), layers.Dense(width)(two)
        return keras.Model([one, two], layers.Dense(CLASSES)(Attention(2, 1, 3, 2)(x, y)))

    describe_layer(Attention, replace(ATTENTION, inputs={"query": "y"}))
    try:
        graph = graph_of(build(4))
    finally:
        describe_layer(Attention, ATTENTION)
    (node,) = (node for node in graph.nodes if node.op == "Attention")
    assert (node.settings or {})["unknown"]
