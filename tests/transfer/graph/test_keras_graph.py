"""The graph of a Keras model: all weights, each once, and which units their axes run over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from ooodist.compat.keras_deferred import made_without_values
from ooodist.errors import UserError
from ooodist.models.lstm import LstmConfig
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.bert import Bert12Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig
from ooodist.transfer.graph.graph import Graph, Node
from ooodist.transfer.graph.keras_functional import as_functional
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from tests.transfer.models import (
    CLASSES,
    SAME,
    bottlenecks,
    chain,
    dense_net,
    difference,
    in_order,
    inverted_bottlenecks,
    of_image_data,
    of_token_data,
    randomize,
    sequences,
    tokens,
    values_of,
    vectors,
    warm,
    weights_of,
)


def check(graph: Graph, model: keras.Model) -> None:
    """What is true of every graph."""
    weights = [weight for node in graph.nodes for weight in node.weights]
    shapes = {name: tuple(weight.shape) for name, weight in weights_of(model).items()}
    assert sorted(weight.name for weight in weights) == sorted(shapes)
    assert {weight.name: weight.shape for weight in weights} == shapes
    trainable = {id(variable) for variable in model.trainable_variables}
    assert sum(weight.trainable for weight in weights) == len(trainable)
    for number, node in enumerate(graph.nodes):
        assert all(source < number for source in node.inputs)
        assert len({weight.kind for weight in node.weights}) == len(node.weights)
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)
    for weight in weights:
        for axis in weight.axes:
            sizes = [graph.spaces[each.space].size * each.inner for each in axis.segments]
            if axis.role == "grouped":
                assert sum(sizes) % axis.size == 0
            elif axis.segments:
                assert sum(sizes) == axis.size
            assert bool(axis.segments) == (axis.role in ("in", "grouped", "out", "unit"))


def node_of(graph: Graph, name: str) -> Node:
    (found,) = (node for node in graph.nodes if node.name == name)
    return found


def spaces_of(graph: Graph, name: str, kind: str = "kernel") -> list[list[int]]:
    """For each axis of a weight the spaces that it runs over."""
    (weight,) = (weight for weight in node_of(graph, name).weights if weight.kind == kind)
    return [[segment.space for segment in axis.segments] for axis in weight.axes]


# Whole models

APPLICATIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "MobileNet": (32, {"alpha": 0.25}),
    "MobileNetV2": (32, {"alpha": 0.35}),
    "MobileNetV3Small": (32, {"alpha": 0.5}),
    "DenseNet121": (32, {}),
    "ResNet50": (32, {}),
    "ResNet50V2": (32, {}),
    "EfficientNetB0": (32, {}),
    "EfficientNetV2B0": (32, {}),
    "ConvNeXtTiny": (32, {}),
    "Xception": (71, {}),
    "InceptionV3": (75, {}),
    "NASNetMobile": (32, {}),
    "VGG16": (32, {}),
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_models_of_keras_applications_have_a_graph(name: str) -> None:
    pixels, settings = APPLICATIONS[name]
    build = getattr(keras.applications, name)
    shape = (pixels, pixels, 3)
    model = made_without_values(
        lambda: build(weights=None, include_top=False, input_shape=shape, pooling="avg", **settings)
    )
    graph = graph_of(model)
    check(graph, model)
    fixed = sum(space.size for space in graph.spaces if space.kind == "fixed")
    if name != "ConvNeXtTiny":  # its layer scale is a layer of its own
        assert fixed <= 3  # of the input, where a Normalization reads it


OURS: dict[str, Callable[[], keras.Model]] = {
    "resnet20": lambda: of_image_data(ResNet20Config(width=4, blocks_per_stage=2)),
    "resnet20, layer norm": lambda: of_image_data(ResNet20Config(width=4, normalization="layer")),
    "vit": lambda: of_image_data(VitConfig(patch=4, layers=2, width=8, heads=2)),
    "gpt": lambda: of_token_data(GptConfig(layers=2, width=8, heads=2)),
    "gpt, untied": lambda: of_token_data(GptConfig(width=8, heads=2, tie_embeddings=False)),
    "bert": lambda: of_token_data(Bert12Config(layers=2, width=8, heads=2)),
    "lstm": lambda: of_token_data(LstmConfig(layers=2, width=8)),
    "bottlenecks": lambda: bottlenecks(4),
    "dense net": lambda: dense_net(3),
    "inverted bottlenecks": lambda: inverted_bottlenecks(4),
}


@pytest.mark.parametrize("name", OURS)
def test_models_have_a_graph_that_names_no_run(name: str) -> None:
    """Two models of the same settings have the same graph, but for numbers in Keras' names."""
    model, other = OURS[name](), OURS[name]()
    graph = graph_of(model)
    check(graph, model)
    assert outline_of(graph) == outline_of(graph_of(other))
    assert graph.spaces == graph_of(other).spaces
    assert all(space.kind != "fixed" for space in graph.spaces)


def test_a_graph_may_be_made_again_and_after_training() -> None:
    model = OURS["inverted bottlenecks"]()
    graph = graph_of(model)
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(np.zeros((2, 16, 16, 3)), np.zeros((2, CLASSES)), verbose=0)
    assert graph_of(model) == graph


def test_a_model_without_weights_yet_is_refused() -> None:
    model = keras.Sequential([layers.Dense(3)], name="unbuilt")
    with pytest.raises(UserError, match=r"unbuilt has no weights yet; build it"):
        graph_of(model)


# Which units belong together


def test_a_residual_stage_is_one_space() -> None:
    graph = graph_of(of_image_data(ResNet20Config(width=4, blocks_per_stage=2)))
    stem = spaces_of(graph, "stem_conv")[-1]
    for block in range(2):
        assert spaces_of(graph, f"stage_0_block_{block}_2_conv")[-1] == stem
        assert spaces_of(graph, f"stage_0_block_{block}_1_conv")[-2] == stem
        assert spaces_of(graph, f"stage_0_block_{block}_1_conv")[-1] != stem
    first, padded = spaces_of(graph, "stage_1_block_0_2_conv")[-1]
    assert [first] == stem
    assert graph.spaces[padded].size == 4
    assert spaces_of(graph, "predictions")[-2][:2] == [first, padded]


def test_a_concatenation_is_read_part_by_part() -> None:
    inputs = keras.Input((4, 4, 3))
    one = layers.Conv2D(5, 1, name="one")(inputs)
    two = layers.Conv2D(6, 1, name="two")(inputs)
    x = layers.Concatenate()([two, one, inputs])
    graph = graph_of(keras.Model(inputs, layers.Conv2D(2, 1, name="last")(x)))
    made = [spaces_of(graph, name)[-1] for name in ("two", "one")]
    reads = spaces_of(graph, "last")[-2]
    assert reads[:2] == [space for part in made for space in part]
    assert graph.spaces[reads[2]].kind == "input"
    assert graph.spaces[spaces_of(graph, "last")[-1][0]].kind == "output"


def test_a_flatten_is_read_pixel_by_pixel() -> None:
    model = chain(
        layers.Conv2D(5, 1), layers.Flatten(), layers.Dense(2, name="last"), shape=(2, 3, 3)
    )
    graph = graph_of(model)
    segments = node_of(graph, "last").weights[0].axes[0].segments
    assert [each.place for each in segments] == [(y, x) for y in range(2) for x in range(3)]
    assert {each.grid for each in segments} == {(2, 3)}
    assert len({each.space for each in segments}) == 1


def test_a_large_flatten_is_fixed() -> None:
    model = chain(
        layers.Conv2D(1, 1), layers.Flatten(), layers.Dense(1, name="last"), shape=(70, 70, 1)
    )
    graph = graph_of(model)
    check(graph, model)
    (segment,) = node_of(graph, "last").weights[0].axes[0].segments
    assert graph.spaces[segment.space].kind == "fixed"


def test_activations_and_what_does_nothing() -> None:
    """An activation is an operator, wherever it is; what changes nothing is none."""
    one = chain(layers.Dense(4, activation="relu"), layers.Dense(2), shape=(6,))
    other = chain(
        layers.Dense(4), layers.ReLU(), layers.Dropout(0.1), layers.Dense(2, "linear"), shape=(6,)
    )
    assert outline_of(graph_of(one)) == outline_of(graph_of(other))
    assert [node.op for node in graph_of(one).nodes] == ["Input", "Dense", "relu", "Dense"]


# Layers that are made of others


class Block(layers.Layer):  # type: ignore[misc, unused-ignore]
    """A layer made of other layers."""

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.one = layers.Dense(2 * width, activation="relu", name="one")
        self.two = layers.Dense(width, name="two")
        self.norm = layers.BatchNormalization(name="norm")

    def call(self, x: Any, gate: Any = None, training: Any = None, scale: float = 1.0) -> Any:
        y = self.norm(self.two(self.one(x)), training=training) * scale
        return x + y if gate is None else x + y * gate


class Subclassed(keras.Model):  # type: ignore[misc, unused-ignore]
    """A model with a call of its own; ``unused`` is never called."""

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.first = layers.Dense(width, name="first")
        self.blocks = [Block(width, name=f"block_{number}") for number in range(2)]
        self.last = layers.Dense(CLASSES, name="last")
        self.unused = layers.Dense(3, name="unused")
        self.unused.build((None, 4))

    def call(self, x: Any, training: Any = None) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, training=training)
        return self.last(x)


def subclassed(width: int) -> keras.Model:
    model = Subclassed(width, name="subclassed")
    model(vectors())
    return model


def test_a_layer_made_of_others_is_taken_apart() -> None:
    def build(width: int) -> keras.Model:
        inputs, gate = keras.Input((6,)), keras.Input((1,))
        x = layers.Dense(width)(inputs)
        block = Block(width, name="block")
        x = block(block(x, scale=0.5), gate=gate)
        return keras.Model([inputs, gate], layers.Dense(CLASSES)(x))

    parent, child = randomize(build(4)), build(7)
    check(graph_of(parent), parent)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, [vectors(), vectors(size=1)]) < SAME


def test_a_subclassed_model_is_taken_apart() -> None:
    """Weights that its call does not use are there too."""
    parent, child = randomize(subclassed(4)), subclassed(7)
    check(graph_of(parent), parent)
    made = warm(child, parent, in_order)
    assert difference(child, parent, vectors()) < SAME
    assert made.carried == 1
    assert {w.name for w in graph_of(parent).nodes[-1].weights} == {
        variable.path for variable in parent.unused.weights
    }


class Stubborn(keras.Model):  # type: ignore[misc, unused-ignore]
    """Takes no symbols: it looks at numbers."""

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.first = layers.Dense(width, name="first")
        self.last = layers.Dense(CLASSES, name="last")
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")

    def call(self, x: Any) -> Any:
        x = self.first(x) * self.factor
        return self.last(x) if float(np.asarray(x).sum()) < 1e9 else x


def test_a_model_that_takes_no_symbols_is_a_chain_of_its_layers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models = []
    for width in (4, 4, 7):
        model = Stubborn(width, name="stubborn")
        model(vectors())
        models.append(model)
    parent, same, wider = models
    with caplog.at_level(logging.WARNING, "ooodist"):
        graph = graph_of(parent)
    assert "stubborn has a call of its own that takes no symbols" in caplog.text
    check(graph, parent)
    randomize(parent)
    warm(same, parent, in_order)
    assert difference(same, parent, vectors()) == 0
    actions = {each.name: each.action for each in warm(wider, parent, in_order).report}
    assert actions["stubborn/factor"] == "copied"
    assert actions["stubborn/last/bias"] == "copied"
    assert actions["stubborn/first/kernel"] == "fresh"


def test_a_functional_model_is_its_own() -> None:
    dense = layers.Dense(2)
    model = chain(dense, shape=(3,))
    assert as_functional(model) is model
    assert as_functional(dense) is None


# Layers of which nothing is known


class Doubled(layers.Dense):  # type: ignore[misc, unused-ignore]
    """Computes something else than its base class."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return 2 * super().call(inputs, training)[:, ::-1]


class OfItsOwn(layers.Layer):  # type: ignore[misc, unused-ignore]
    def build(self, shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(shape=(shape[-1], 3), name="table")

    def call(self, x: Any) -> Any:
        return x @ self.table


UNKNOWN: dict[str, Callable[[int], Any]] = {
    "a call of its own": lambda width: Doubled(width),
    "a layer of its own": lambda width: OfItsOwn(),
    "Bidirectional": lambda width: layers.Bidirectional(layers.GRU(width)),
    "TimeDistributed": lambda width: layers.TimeDistributed(layers.Dense(width)),
    "EinsumDense": lambda width: layers.EinsumDense("abc,bcd->abd", (5, width)),
    "Normalization": lambda width: layers.Normalization(),
    "SpectralNormalization": lambda width: layers.SpectralNormalization(layers.Dense(width)),
    "ConvLSTM1D": lambda width: chain(
        layers.Reshape((5, 2, width)), layers.ConvLSTM1D(width, 1), shape=(5, 2 * width)
    ),
}


def with_unknown(name: str, width: int) -> keras.Model:
    layer = UNKNOWN[name](width)
    inputs = keras.Input((5, 6))
    x = layers.Dense(2 * width)(inputs)
    x = x[:, 0] if name == "a call of its own" else x
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(layer(x))))


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_unknown_is_copied_if_it_has_the_same_shape(name: str) -> None:
    parent, same = randomize(with_unknown(name, 4)), with_unknown(name, 4)
    check(graph_of(parent), parent)
    assert {each.action for each in warm(same, parent, in_order).report} == {"copied"}
    assert difference(same, parent, sequences()) == 0


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_unknown_is_fresh_if_it_has_another_shape(name: str) -> None:
    parent, child = randomize(with_unknown(name, 4)), with_unknown(name, 6)
    own = values_of(child)
    made = warm(child, parent, in_order)
    sources = values_of(parent)
    for each in made.report:
        if each.action == "fresh":
            np.testing.assert_array_equal(made.values[each.name], own[each.name])
        elif each.action == "copied":
            assert made.values[each.name].shape == sources[each.source].shape
    assert np.isfinite(difference(child, child, sequences()))


# Data types


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_other_types_stay_of_their_type(dtype: str) -> None:
    def build(width: int) -> keras.Model:
        return chain(
            layers.Dense(width, activation="relu", dtype=dtype),
            layers.BatchNormalization(dtype=dtype),
            layers.Dense(CLASSES, dtype=dtype),
            shape=(6,),
        )

    parent, same, wider = randomize(build(4)), build(4), build(7)
    warm(same, parent, in_order)
    for mine, its in zip(values_of(same).values(), values_of(parent).values(), strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
    made = warm(wider, parent, in_order)
    assert {value.dtype for value in made.values.values()} == {
        value.dtype for value in values_of(parent).values()
    }
    allowed = {"float16": 5e-3, "bfloat16": 5e-2, "float64": 1e-6}[dtype]
    assert difference(wider, parent, vectors()) < allowed


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_masks_are_no_operators() -> None:
    def build(width: int) -> keras.Model:
        return chain(
            layers.Embedding(24, width, mask_zero=True),
            layers.LSTM(width, return_sequences=True),
            chain(layers.Dense(width), layers.Dropout(0.1), shape=(7, width)),
            Block(width),
            layers.GlobalAveragePooling1D(),
            layers.Dense(CLASSES),
            shape=(7,),
            dtype="int32",
        )

    parent, child = randomize(build(4)), build(7)
    check(graph_of(parent), parent)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, tokens()) < SAME
