"""A child's weights from its parent's: the same function, and what is reported of each weight."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.mapping.transform import TensorReport, Transformed, transform
from tests.thorough import few
from tests.transfer.models import (
    CLASSES,
    SAME,
    WIDER,
    chain,
    check_report,
    convolution,
    dense_net,
    difference,
    gpt,
    head,
    images,
    in_order,
    inverted_bottlenecks,
    lstm,
    outputs_of,
    parent_of,
    randomize,
    sequences,
    step,
    tokens,
    values_of,
    vectors,
    warm,
    wider,
)

# The same architecture


@pytest.mark.parametrize("name", WIDER)
def test_the_same_architecture_is_an_exact_copy(name: str) -> None:
    build, _, data = WIDER[name]
    parent, child = parent_of(name), build()
    made = warm(child, parent)
    check_report(made, child)
    assert {each.action for each in made.report} == {"copied"}
    assert made.carried == 1
    for mine, its in zip(values_of(child).values(), values_of(parent).values(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert difference(child, parent, data) == 0


# Wider


@pytest.mark.parametrize("name", WIDER)
def test_wider_models_compute_the_same(name: str) -> None:
    parent, child, data = parent_of(name), wider(name), WIDER[name][2]
    made = warm(child, parent, in_order)
    check_report(made, child)
    assert {each.action for each in made.report} <= {"copied", "widened"}
    assert made.carried == 1
    assert made.departures == ()
    assert difference(child, parent, data) < SAME


@pytest.mark.parametrize("name", ["mlp", "dense net", "inverted bottlenecks", "vit", "gpt"])
def test_wider_models_compute_the_same_as_the_zoo_matches_them(name: str) -> None:
    parent, child, data = parent_of(name), wider(name), WIDER[name][2]
    assert warm(child, parent).departures == ()
    assert difference(child, parent, data) < SAME


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
@pytest.mark.parametrize("merge_mode", ["concat", "sum"])
def test_layers_of_both_directions(kind: Any, merge_mode: str) -> None:
    def build(width: int) -> keras.Model:
        first = layers.Bidirectional(kind(width, return_sequences=True), merge_mode)
        last = layers.Bidirectional(kind(width + 1), merge_mode)
        return chain(first, last, layers.Dense(3), shape=(5, 6))

    parent, child = randomize(build(3)), build(5)
    made = warm(child, parent)
    check_report(made, child)
    assert made.carried == 1
    assert made.departures == ()
    assert difference(child, parent, sequences()) < SAME


# Kernels of other sizes


def with_kernels(size: int, strides: int, pixels: int, padding: str = "same") -> keras.Model:
    return chain(
        layers.Conv2D(4, size, strides, padding=padding, activation="relu"),
        layers.DepthwiseConv2D(size, strides, padding=padding),
        layers.SeparableConv2D(4, size, strides, padding=padding),
        layers.Conv2DTranspose(5, size, strides, padding=padding),
        layers.GlobalAveragePooling2D(),
        layers.Dense(CLASSES),
        shape=(pixels, pixels + 1, 3),
    )


@pytest.mark.parametrize("sizes", [(1, 3), (1, 5), (3, 5), (2, 4), (2, 3), (3, 4)])
@pytest.mark.parametrize(("strides", "pixels"), [(1, 9), (2, 9), (2, 12)])
def test_a_larger_kernel_computes_the_same(
    sizes: tuple[int, int], strides: int, pixels: int
) -> None:
    """It lies over the same pixels, which are not always in its middle."""
    parent, child = (with_kernels(size, strides, pixels) for size in sizes)
    randomize(parent)
    made = warm(child, parent, in_order)
    check_report(made, child)
    data = np.random.default_rng(0).normal(size=(2, pixels, pixels + 1, 3))
    assert difference(child, parent, data) < SAME


@pytest.mark.parametrize("size", [3, 5])
def test_a_larger_causal_kernel_computes_the_same(size: int) -> None:
    def build(size: int) -> keras.Model:
        return chain(layers.Conv1D(3, size, padding="causal", dilation_rate=2), shape=(9, 2))

    parent, child = randomize(build(2)), build(size)
    warm(child, parent, in_order)
    data = np.random.default_rng(0).normal(size=(2, 9, 2))
    assert difference(child, parent, data) < SAME


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_of_a_larger_kernel_the_centre_is_kept(padding: str) -> None:
    parent, child = (
        chain(layers.Conv2D(4, size, padding=padding, name="conv"), shape=(9, 9, 3))
        for size in (5, 3)
    )
    made = warm(child, parent, in_order)
    kernel = values_of(parent)["conv/kernel"]
    np.testing.assert_array_equal(made.values["conv/kernel"], kernel[1:4, 1:4])
    assert [each.action for each in made.report] == ["narrowed", "copied"]


def test_a_kernel_may_grow_on_one_side_and_shrink_on_the_other() -> None:
    parent, child = (
        chain(layers.Conv2D(4, size, padding="same", name="conv"), shape=(9, 9, 3))
        for size in ((1, 5), (3, 3))
    )
    kernel = warm(child, parent, in_order).values["conv/kernel"]
    np.testing.assert_array_equal(kernel[1], values_of(parent)["conv/kernel"][0, 1:4])
    assert not kernel[[0, 2]].any()


# Symmetry


def differences_of_copies(child: keras.Model, name: str, axis: int, size: int) -> np.ndarray:
    """Of each copied unit of a weight to what it is a copy of, relative; the first are its own."""
    value = np.moveaxis(values_of(child)[name], axis, 0)
    copies = [np.abs(value[unit] - value[unit % size]) for unit in range(size, len(value))]
    return np.array([copy.max() for copy in copies]) / np.abs(value).max()


@pytest.mark.parametrize(
    ("build", "name", "axis", "data"),
    [
        (
            lambda width: chain(
                layers.Dense(width, "tanh", name="first"),
                layers.Dense(width, "tanh", name="second"),
                layers.Dense(CLASSES),
                shape=(6,),
            ),
            "first/kernel",
            1,
            vectors(),
        ),
        (
            lambda width: chain(
                layers.Conv2D(width, 3, name="first"),
                layers.ReLU(),
                layers.Conv2D(width, 3),
                layers.GlobalAveragePooling2D(),
                layers.Dense(CLASSES),
                shape=(8, 8, 3),
            ),
            "first/kernel",
            3,
            images(pixels=8),
        ),
        (lambda width: gpt(width=2 * width), "tokens/table", 1, tokens()),
        (lambda width: gpt(width=2 * width), "block_0_mlp_expand/kernel", 1, tokens()),
        (
            lambda width: gpt(width=2 * width, heads=width // 2),
            "block_0_attention/value/kernel",
            1,
            tokens(),
        ),
        (lambda width: lstm(width=width), "lstm_0/lstm_cell/kernel", 0, tokens()),
    ],
    ids=["Dense", "Conv2D", "tied table", "mlp of gpt", "heads", "embedding of lstm"],
)
def test_copies_learn_different_things(
    build: Callable[[int], keras.Model], name: str, axis: int, data: Any
) -> None:
    parent, child = randomize(build(4)), build(8)
    made = warm(child, parent, in_order)
    size = values_of(parent)[name].shape[axis]
    assert difference(child, parent, data) < SAME
    if name in ("first/kernel", "tokens/table"):  # what reads no copies
        assert differences_of_copies(child, name, axis, size).max() == 0
    step(child, data, rate=0.05, steps=3)
    assert differences_of_copies(child, name, axis, size).min() > 1e-6
    assert name in made.names("widened")


def test_parts_are_unequal_and_of_one_sign() -> None:
    parent, child = (
        chain(layers.Dense(width, name="a"), layers.Dense(40, name="b"), shape=(6,))
        for width in (3, 7)
    )
    made = warm(child, parent, in_order)
    ratio = made.values["b/kernel"] / values_of(parent)["b/kernel"][np.arange(7) % 3]
    assert 0.1 < ratio.min() < ratio.max() < 0.9
    np.testing.assert_allclose(ratio[0] + ratio[3] + ratio[6], 1, rtol=1e-5)
    np.testing.assert_allclose(ratio[1] + ratio[4], 1, rtol=1e-5)
    assert len(np.unique(ratio.round(4))) > 200


def test_the_seed_decides_on_the_parts_and_on_nothing_else() -> None:
    parent = randomize(gpt())
    child = gpt(width=24, heads=6)
    first, again = (warm(child, parent, in_order, seed=1) for _ in range(2))
    other = warm(child, parent, in_order, seed=2)
    changed = []
    for name, value in first.values.items():
        np.testing.assert_array_equal(value, again.values[name])
        if np.any(value != other.values[name]):
            changed.append(name)
    assert difference(child, parent, tokens()) < SAME
    assert first.report == other.report
    whole = ("table", "positions", "key/bias", "value/bias", "output/bias", "contract/bias")
    assert changed
    assert not [name for name in changed if name.endswith(whole)]
    assert "norm/gamma" in changed  # the table that it is read by is tied


# What does not fit


@pytest.mark.parametrize("name", ["resnet", "dense net", "gpt", "lstm", "bottlenecks"])
def test_without_pairs_all_is_fresh(name: str) -> None:
    child = wider(name)
    own = values_of(child)
    made = warm(child, parent_of(name), [])
    check_report(made, child)
    assert {each.action for each in made.report} == {"fresh"}
    assert made.carried == 0
    for each, value in made.values.items():
        np.testing.assert_array_equal(value, own[each])


@pytest.mark.parametrize(
    ("one", "other"),
    list(itertools.permutations(["mlp", "resnet", "bottlenecks", "dense net", "vit"], 2)),
)
def test_models_that_have_little_in_common_do_no_harm(one: str, other: str) -> None:
    """Any model may be the parent of any other: all numbers are finite, all shapes are right."""
    child, parent = wider(one), parent_of(other)
    made = warm(child, parent)
    check_report(made, child)
    assert all(np.isfinite(each).all() for each in outputs_of(child, images()))


@functools.cache
def unlike() -> tuple[keras.Model, keras.Model]:
    return dense_net(4, (2, 1)), inverted_bottlenecks(5, 2)


@few(15)
@given(st.integers(0, 10**6))
def test_pairs_that_make_no_sense_do_no_harm(seed: int) -> None:
    """Operators are paired at random, if they are of one kind and in one order."""
    random = np.random.default_rng(seed)
    child, parent = unlike()
    graph, source = graph_of(child), graph_of(parent)
    pairs, start = [], 0
    for number, node in enumerate(graph.nodes):
        fitting = [m for m in range(start, len(source.nodes)) if source.nodes[m].op == node.op]
        if fitting and random.random() < 0.7:
            partner = int(random.choice(fitting[:3]))
            pairs.append((number, partner))
            start = partner + 1
    made = transform(graph, values_of(child), source, values_of(parent), pairs)
    check_report(made, child)


def test_a_child_may_be_trained_where_its_parent_ended() -> None:
    """Its loss begins where that of the parent ends, and falls from there."""
    parent = randomize(chain(layers.Dense(8, "relu"), layers.Dense(3), shape=(6,)))
    data = vectors()
    target = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    parent.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
    parent.fit(data, target, epochs=20, verbose=0)
    child = chain(layers.Dense(13, "relu"), layers.Dense(3), shape=(6,))
    warm(child, parent)
    child.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
    begin = parent.evaluate(data, target, verbose=0)
    assert child.evaluate(data, target, verbose=0) == pytest.approx(begin, rel=1e-4)
    child.fit(data, target, epochs=5, verbose=0)
    assert child.evaluate(data, target, verbose=0) < begin


def test_a_report_counts_what_was_carried() -> None:
    report = (
        TensorReport("a", "copied", 50, "x"),
        TensorReport("b", "widened", 20, "y"),
        TensorReport("c", "narrowed", 10, "z"),
        TensorReport("d", "identity", 15),
        TensorReport("e", "fresh", 5),
    )
    made = Transformed({}, report)
    assert made.carried == 0.8
    assert made.names("identity", "fresh") == ("d", "e")
    assert Transformed({}, ()).carried == 0


# Random models

WIDTHS = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@few(12)
@given(st.data(), WIDTHS, st.sampled_from(["relu", "tanh", "gelu"]), st.booleans())
def test_random_mlps_of_any_larger_widths(
    data: st.DataObject, widths: list[int], activation: str, norm: bool
) -> None:
    more = [data.draw(st.integers(0, 5)) for _ in widths]

    def build(sizes: list[int]) -> keras.Model:
        parts: list[Any] = []
        for size in sizes:
            parts.append(layers.Dense(size, activation=activation))
            parts += [layers.BatchNormalization()] * norm if not parts[1:] else []
        return chain(*parts, layers.Dense(3), shape=(6,))

    parent = randomize(build(widths), sum(widths))
    child = build([a + b for a, b in zip(widths, more, strict=True)])
    made = warm(child, parent, in_order)
    check_report(made, child)
    assert difference(child, parent, vectors()) < SAME


@st.composite
def stages(draw: st.DrawFn) -> list[tuple[int, int, bool]]:
    """Width, blocks, and whether what a block makes is added or put beside."""
    return draw(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(1, 2), st.booleans()), min_size=1, max_size=2
        )
    )


def random_cnn(plan: list[tuple[int, int, bool]], size: int) -> keras.Model:
    inputs = x = keras.Input((8, 8, 2))
    for width, blocks, is_added in plan:
        x = convolution(x, width, size)
        for _ in range(blocks):
            y = convolution(convolution(x, width + 1, size), width, 1, relu=False)
            x = layers.ReLU()(layers.Add()([x, y]) if is_added else layers.Concatenate()([x, y]))
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


@few(10)
@given(st.data(), stages(), st.sampled_from([(1, 3), (3, 3), (2, 3)]))
def test_random_cnns_of_any_larger_widths_and_kernels(
    data: st.DataObject, plan: list[tuple[int, int, bool]], sizes: tuple[int, int]
) -> None:
    larger = [(width + data.draw(st.integers(0, 4)), *rest) for width, *rest in plan]
    parent, child = random_cnn(plan, sizes[0]), random_cnn(larger, sizes[1])  # type: ignore[arg-type]
    randomize(parent, plan[0][0])
    made = warm(child, parent, in_order)
    check_report(made, child)
    assert made.carried == 1
    assert made.departures == ()
    assert difference(child, parent, images(pixels=8, channels=2)) < SAME


@few(8)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=3), st.integers(0, 3))
def test_random_residual_nets_of_any_larger_depth(more: list[int], width: int) -> None:
    """Blocks between those that were there; all is as the zoo would match it."""

    def build(blocks: list[int]) -> keras.Model:
        inputs = keras.Input((8, 8, 2))
        x = layers.Conv2D(4, 3, padding="same", name="stem")(inputs)
        for stage, count in enumerate(blocks):
            for block in range(count):
                name = f"stage_{stage}_block_{block}"
                y = layers.BatchNormalization(name=f"{name}_norm")(x)
                y = layers.ReLU(name=f"{name}_relu")(y)
                y = layers.Conv2D(4, 3, padding="same", name=f"{name}_conv")(y)
                x = layers.Add(name=f"{name}_add")([x, y])
            x = layers.AveragePooling2D(2, name=f"stage_{stage}_pool")(x)
        return keras.Model(inputs, head(x))

    parent = randomize(build([1] * len(more)), width)
    child = build([1 + count for count in more])
    made = warm(child, parent)
    check_report(made, child)
    assert difference(child, parent, images(pixels=8, channels=2)) < SAME
