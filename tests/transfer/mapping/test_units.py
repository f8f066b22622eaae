"""Which unit of the parent each unit of the child comes from; narrower models; other inputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from ooodist.models.resnet20 import ResNet20Config
from ooodist.transfer.graph.graph import Axis, Graph, Node, Segment, Space, Weight
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.mapping.units import NOTHING, UnitMaps, common_weights
from tests.transfer.models import (
    CLASSES,
    SAME,
    WIDER,
    chain,
    check_report,
    difference,
    head,
    images,
    in_order,
    of_image_data,
    outputs_of,
    randomize,
    resnet,
    values_of,
    warm,
    weights_of,
    wider,
)

SIZES = st.integers(1, 12)


def dense_graph(reads: Space, makes: Space) -> Graph:
    """A Dense from one space to another."""
    ins = Axis(reads.size, "in", (Segment(0),))
    out = Axis(makes.size, "out", (Segment(1),))
    return Graph(
        (
            Node("input:0", "Input"),
            Node("dense", "Dense", (0,), (Weight("kernel", "kernel", (ins, out)),)),
        ),
        (reads, makes),
    )


def maps_of(child: Graph, parent: Graph, values: Any = None) -> UnitMaps:
    if values is None:
        random = np.random.default_rng(0)
        (weight,) = parent.nodes[1].weights
        values = {weight.name: random.normal(size=weight.shape)}
    return UnitMaps(child, parent, [(0, 0), (1, 1)], values)


# Units of a space


@given(SIZES, SIZES)
def test_a_wider_space_has_all_units_and_copies_of_them(its: int, more: int) -> None:
    """The first are the parent's own; none is copied more than once more than another."""
    child, parent = (dense_graph(Space(3), Space(size)) for size in (its + more, its))
    units = maps_of(child, parent).units(1, 1)
    np.testing.assert_array_equal(units[:its], np.arange(its))
    counts = np.bincount(units, minlength=its)
    assert counts.sum() == its + more
    assert counts.max() - counts.min() <= 1


@given(SIZES, SIZES)
def test_a_narrower_space_has_the_units_that_matter_most(size: int, more: int) -> None:
    """In their order; of those that matter as much the first ones."""
    child, parent = (dense_graph(Space(3), Space(n)) for n in (size, size + more))
    random = np.random.default_rng(size)
    kernel = random.normal(size=(3, size + more))
    units = maps_of(child, parent, {"kernel": kernel}).units(1, 1)
    norms = np.linalg.norm(kernel, axis=0)
    assert list(units) == sorted(np.argsort(-norms, kind="stable")[:size])
    equal = maps_of(child, parent, {"kernel": np.ones_like(kernel)}).units(1, 1)
    assert list(equal) == list(range(size))


@given(SIZES, st.sampled_from(["units", "input", "output", "fixed"]), st.booleans())
def test_a_space_of_the_same_size_is_the_same(size: int, kind: Any, averaged: bool) -> None:
    space = Space(size, kind, averaged)
    graph = dense_graph(space, space)
    np.testing.assert_array_equal(maps_of(graph, graph).units(0, 0), np.arange(size))


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        ("output", (4, 3), [NOTHING] * 4),  # other classes
        ("output", (3, 4), [NOTHING] * 3),
        ("input", (5, 3), [0, 1, 2, NOTHING, NOTHING]),  # a larger vocabulary
        ("input", (2, 3), [0, 1]),
        ("input", (3, 1), [0, 0, 0]),  # gray images, and now colors
        ("fixed", (4, 3), [0, 1, 2, NOTHING]),
        ("fixed", (2, 3), [0, 1]),
    ],
)
def test_units_that_are_not_alike_are_not_copied(
    kind: Any, sizes: tuple[int, int], expected: list[int]
) -> None:
    child, parent = (dense_graph(Space(size, kind), Space(2)) for size in sizes)
    assert list(maps_of(child, parent).units(0, 0)) == expected


def test_what_is_read_counts_as_what_is_made() -> None:
    """A unit that nobody hears does not matter, however loud it is."""
    wide = chain(layers.Dense(4, name="a"), layers.Dense(2, name="b"), shape=(3,))
    narrow = chain(layers.Dense(2, name="a"), layers.Dense(2, name="b"), shape=(3,))
    wide.get_layer("a").set_weights([np.tile([9.0, 1, 2, 3], (3, 1)), np.zeros(4)])
    wide.get_layer("b").set_weights([np.tile([[0.0], [1], [1], [1]], (1, 2)), np.zeros(2)])
    assert self_map(narrow, wide) == [2, 3]


def test_behind_a_batch_norm_its_gamma_counts() -> None:
    def build(width: int) -> Any:
        return chain(
            layers.Dense(width, name="a"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(2, name="b"),
            shape=(3,),
        )

    wide = build(4)
    wide.get_layer("a").set_weights([np.tile([9.0, 1, 9, 1], (3, 1)), np.zeros(4)])
    wide.get_layer("norm").gamma.assign([0.1, 1, 0.2, -2])
    wide.get_layer("b").set_weights([np.ones((4, 2)), np.zeros(2)])
    assert self_map(build(2), wide) == [1, 3]


def self_map(narrow: Any, wide: Any) -> list[int]:
    """Of the space that the first Dense makes."""
    child, parent = graph_of(narrow), graph_of(wide)
    maps = UnitMaps(child, parent, in_order(child, parent), values_of(wide))
    spaces = [graph.nodes[1].weights[0].axes[1].segments[0].space for graph in (child, parent)]
    assert maps.partner(spaces[0]) == spaces[1]
    return list(maps.units(*spaces))


# Axes


def test_parts_that_only_one_model_tells_apart_are_one_space() -> None:
    """As where a group norm takes the place of a batch norm."""

    def build(width: int, norm: Any) -> Any:
        convolution = layers.Conv2D(width, 1, name="first")
        return chain(convolution, norm, layers.Conv2D(2, 1, name="last"), shape=(4, 4, 3))

    parent = randomize(build(6, layers.BatchNormalization(name="norm")))
    pairs = [(0, 0), (1, 1), (3, 3)]
    for width in (4, 6, 10):
        child = build(width, layers.GroupNormalization(2, name="norm"))
        values = values_of(parent)
        made = warm(child, parent, pairs).values
        if width == 4:
            units = np.array(kept_of(made["first/kernel"], values["first/kernel"]))
            assert len(set(units)) == 4
        else:
            units = np.arange(width) % 6
        np.testing.assert_array_equal(made["first/kernel"], values["first/kernel"][..., units])
        total = np.zeros((6, 2))
        np.add.at(total, units, made["last/kernel"][0, 0])
        np.testing.assert_allclose(total[units], values["last/kernel"][0, 0][units], rtol=1e-5)


def kept_of(kernel: np.ndarray, source: np.ndarray) -> list[int]:
    """Which columns of the source there are."""
    found = [
        [n for n in range(source.shape[-1]) if np.array_equal(source[..., n], kernel[..., m])]
        for m in range(kernel.shape[-1])
    ]
    return [number for (number,) in found]


def axis_of(*segments: Segment, graph: Graph) -> Axis:
    size = sum(graph.spaces[each.space].size * each.inner for each in segments)
    return Axis(size, "in", segments)


def test_an_axis_of_several_spaces_goes_part_by_part() -> None:
    child, parent = dense_graph(Space(3), Space(4)), dense_graph(Space(2), Space(3))
    maps = maps_of(child, parent)
    mine = axis_of(Segment(0), Segment(1), graph=child)
    its = axis_of(Segment(0), Segment(1), graph=parent)
    assert list(maps.axis(mine, its)) == [0, 1, 0, 2, 3, 4, 2]


def test_a_part_that_the_parent_does_not_have_comes_from_nothing() -> None:
    """And parts find their partners by their spaces, not by their order."""
    child, parent = dense_graph(Space(2), Space(3)), dense_graph(Space(2), Space(3))
    maps = maps_of(child, parent)
    mine = axis_of(Segment(1), Segment(0), Segment(0), graph=child)
    its = axis_of(Segment(0), Segment(1), graph=parent)
    assert list(maps.axis(mine, its)) == [2, 3, 4, 0, 1, 0, 1]
    wider = Graph(child.nodes, (*child.spaces, Space(2)))
    mine = axis_of(Segment(0), Segment(2), Segment(1), graph=wider)
    assert list(maps_of(wider, parent).axis(mine, its)) == [0, 1, NOTHING, NOTHING, 2, 3, 4]


def test_a_larger_grid_takes_from_the_nearest_place() -> None:
    graph = dense_graph(Space(2), Space(1))
    maps = maps_of(graph, graph)

    def on(grid: tuple[int, int]) -> Axis:
        places = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
        return axis_of(*(Segment(0, place, grid) for place in places), graph=graph)

    rows = maps.axis(on((2, 4)), on((1, 2))).reshape(2, 4, 2)
    np.testing.assert_array_equal(rows[0], [[0, 1], [0, 1], [2, 3], [2, 3]])
    np.testing.assert_array_equal(rows[0], rows[1])
    assert len(maps.axis(on((1, 2)), on((2, 4)))) == 4


def test_a_depth_multiplier_keeps_what_belongs_to_a_unit_together() -> None:
    child, parent = dense_graph(Space(3), Space(1)), dense_graph(Space(2), Space(1))
    maps = maps_of(child, parent)
    mine, its = (axis_of(Segment(0, inner=2), graph=graph) for graph in (child, parent))
    assert list(maps.axis(mine, its)) == [0, 1, 2, 3, 0, 1]


@given(st.lists(SIZES, min_size=1, max_size=4), st.lists(SIZES, min_size=4, max_size=4))
def test_indices_are_those_of_the_parents_axis(mine: list[int], its: list[int]) -> None:
    its = its[: len(mine)]
    child = chain(*(layers.Dense(size) for size in (*mine, 2)), shape=(3,))
    parent = chain(*(layers.Dense(size) for size in (*its, 2)), shape=(3,))
    graphs = graph_of(child), graph_of(parent)
    pairs = in_order(*graphs)
    maps = UnitMaps(*graphs, pairs, values_of(parent))
    for _, _, weight, other in common_weights(*graphs, pairs):
        for one, two in zip(weight.axes, other.axes, strict=True):
            indices = maps.axis(one, two)
            assert len(indices) == one.size
            assert set(indices) <= set(range(two.size))
            assert one.size < two.size or set(indices) == set(range(two.size))


def test_a_new_space_inherits_where_what_it_reads_comes_from() -> None:
    child = Graph(dense_graph(Space(2), Space(2)).nodes, (Space(2), Space(2), Space(2)))
    parent = dense_graph(Space(2), Space(2))
    maps = maps_of(child, parent)
    assert maps.partner(2) is None
    maps.inherit(2, 0)
    assert maps.partner(2) == 0
    maps.inherit(1, 0)  # has one already
    assert maps.partner(1) == 1


# Narrower


def test_units_that_do_nothing_are_left_out_of_the_whole_group() -> None:
    """Half of the channels of a residual stage are silent; without them it is the same."""
    parent, child = randomize(residual(8)), residual(4)
    silent = np.array([1, 2, 5, 7])
    for name, variable in weights_of(parent).items():
        layer, kind = name.split("/")
        if kind in ("gamma", "beta") and layer != "inside_norm":
            value = np.asarray(variable).copy()
            value[silent] = 0
            variable.assign(value)
        elif layer == "inside_norm" and kind in ("gamma", "beta"):
            value = np.asarray(variable).copy()
            value[:4] = 0
            variable.assign(value)
    made = warm(child, parent, in_order)
    check_report(made, child)
    assert difference(child, parent, images(pixels=8)) < SAME
    kept = np.setdiff1d(np.arange(8), silent)
    values = values_of(parent)
    for name in ("stem_norm/gamma", "end_norm/moving_mean"):
        np.testing.assert_array_equal(made.values[name], values[name][kept])
    expected = values["inside/kernel"][:, :, kept][..., 4:]
    np.testing.assert_array_equal(made.values["inside/kernel"], expected)


def residual(width: int) -> keras.Model:
    inputs = keras.Input((8, 8, 3))

    def unit(x: Any, name: str) -> Any:
        x = layers.Conv2D(width, 3, padding="same", use_bias=False, name=name)(x)
        return layers.BatchNormalization(name=f"{name}_norm")(x)

    x = layers.ReLU()(unit(inputs, "stem"))
    y = unit(layers.ReLU()(unit(x, "inside")), "end")
    return keras.Model(inputs, head(layers.ReLU()(layers.Add()([x, y]))))


@pytest.mark.parametrize("name", WIDER)
def test_narrower_models_take_whole_units(name: str) -> None:
    """And narrowed again after widening, they are what they were, but for parts."""
    build, _, data = WIDER[name]
    parent, child = randomize(wider(name)), build()
    made = warm(child, parent, in_order)
    check_report(made, child)
    assert {each.action for each in made.report} <= {"copied", "narrowed"}
    assert all(np.isfinite(each).all() for each in outputs_of(child, data))


def test_narrower_here_and_wider_there() -> None:
    parent = randomize(chain(layers.Dense(8, "relu"), layers.Dense(4), shape=(6,)))
    child = chain(layers.Dense(5, "relu"), layers.Dense(4), layers.Dense(3), shape=(6,))
    made = warm(child, parent, [(0, 0), (1, 1), (2, 2), (3, 3)])
    check_report(made, child)
    assert [each.action for each in made.report] == [
        *("narrowed", "narrowed", "narrowed", "copied", "fresh", "fresh")
    ]


def test_other_classes_need_a_new_head() -> None:
    parent = randomize(resnet())
    child = of_image_data(ResNet20Config(width=4, blocks_per_stage=1), classes=CLASSES + 3)
    own = values_of(child)
    made = warm(child, parent)
    check_report(made, child)
    assert made.names("fresh") == ("predictions/kernel", "predictions/bias")
    assert {e.action for e in made.report if not e.name.startswith("pred")} == {"copied"}
    np.testing.assert_array_equal(made.values["predictions/bias"], own["predictions/bias"])
    np.testing.assert_array_equal(made.values["predictions/kernel"], own["predictions/kernel"])


def test_more_input_channels_begin_with_those_that_were_there() -> None:
    def build(channels: int) -> keras.Model:
        shape = (8, 8, channels)
        return chain(layers.Conv2D(4, 3, name="conv"), layers.Flatten(), shape=shape)

    parent, child = randomize(build(3)), build(5)
    warm(child, parent, in_order)
    data = images(pixels=8, channels=5)
    ours, theirs = outputs_of(child, data), outputs_of(parent, data[..., :3])
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


def test_gray_images_that_become_colored_are_the_mean_of_colors() -> None:
    def build(channels: int) -> keras.Model:
        return chain(layers.Conv2D(4, 3, name="conv"), layers.Flatten(), shape=(8, 8, channels))

    parent, child = randomize(build(1)), build(3)
    warm(child, parent, in_order)
    gray = images(pixels=8, channels=1)
    ours, theirs = outputs_of(child, np.repeat(gray, 3, axis=-1)), outputs_of(parent, gray)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


def test_larger_images_in_front_of_a_flatten() -> None:
    """Each place takes from the nearest one; where four take from one, they take parts."""

    def build(pixels: int) -> keras.Model:
        return chain(
            layers.Conv2D(4, 1, activation="relu"),
            layers.Flatten(),
            layers.Dense(CLASSES),
            shape=(pixels, pixels, 3),
        )

    parent, child = randomize(build(4)), build(8)
    assert warm(child, parent, in_order).carried == 1
    small = images(pixels=4)
    large = small.repeat(2, axis=1).repeat(2, axis=2)
    ours, theirs = outputs_of(child, large)[0], outputs_of(parent, small)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
