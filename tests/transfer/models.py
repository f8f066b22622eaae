"""Sample models, and what tests of warm starts do with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from ooodist import models
from ooodist.models.base import DataDescription, ModelConfig
from ooodist.models.lstm import LstmConfig
from ooodist.models.mlp import MlpConfig
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.bert import Bert12Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig
from ooodist.step.backward import variable_names
from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from ooodist.transfer.mapping.transform import Transformed, transform
from ooodist.transfer.matching.match import match, prepare

SAME = 1e-5  # of the largest output: what rounding may change
CLASSES = 5
VOCABULARY = 24

Pairs = Sequence[tuple[int, int]]
Layer = Callable[[Any], Any]


# Data


def images(count: int = 3, pixels: int = 16, channels: int = 3) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.normal(size=(count, pixels, pixels, channels)).astype(np.float32)


def vectors(count: int = 4, size: int = 6) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(count, size)).astype(np.float32)


def sequences(count: int = 3, length: int = 5, size: int = 6) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(count, length, size)).astype(np.float32)


def tokens(count: int = 3, length: int = 7) -> np.ndarray:
    return np.random.default_rng(4).integers(0, VOCABULARY, (count, length))


def of_image_data(config: ModelConfig, pixels: int = 16, classes: int = CLASSES) -> keras.Model:
    """One of our models, for small images."""
    spec = tf.TensorSpec((pixels, pixels, 3), tf.float32)
    data = SimpleNamespace(
        input_spec=spec, task="classification", num_classes=classes, num_tokens=None
    )
    return models.build(config, _described(data))


def of_token_data(config: ModelConfig, task: str = "language", classes: int = 0) -> keras.Model:
    """One of our models, for sequences of tokens."""
    spec = tf.TensorSpec((7,), tf.int32)
    data = SimpleNamespace(
        input_spec=spec, task=task, num_classes=classes or VOCABULARY, num_tokens=None
    )
    return models.build(config, _described(data))


def _described(data: Any) -> DataDescription:
    described: DataDescription = data
    return described


# Models


def chain(*parts: Layer, shape: Sequence[int | None] = (16, 16, 3), dtype: str = "float32") -> Any:
    """A functional model of layers in a row."""
    inputs = x = keras.Input(tuple(shape), dtype=dtype)
    for part in parts:
        x = part(x)
    return keras.Model(inputs, x)


def convolution(x: Any, filters: int, size: int = 3, strides: int = 1, relu: bool = True) -> Any:
    """A convolution, a batch norm, and perhaps a ReLU."""
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if relu else x


def head(x: Any, classes: int = CLASSES) -> Any:
    return layers.Dense(classes, name="head")(layers.GlobalAveragePooling2D()(x))


def bottlenecks(width: int, blocks: Sequence[int] = (1, 1), pixels: int = 16) -> keras.Model:
    """Like ResNet-50: the shortcut to a new stage is a convolution of its own."""
    inputs = keras.Input((pixels, pixels, 3))
    x = convolution(inputs, width)
    for stage, count in enumerate(blocks):
        filters = width * 2**stage
        for block in range(count):
            strides = 2 if stage > 0 and block == 0 else 1
            y = convolution(x, filters, 1)
            y = convolution(y, filters, 3, strides)
            y = convolution(y, 4 * filters, 1, relu=False)
            if block == 0:
                # TensorFlow's gradient of a 1x1 convolution with strides may crash on CPUs.
                x = layers.AveragePooling2D(strides)(x) if strides > 1 else x
                x = convolution(x, 4 * filters, 1, relu=False)
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, head(x))


def dense_net(growth: int, blocks: Sequence[int] = (2, 2), pixels: int = 16) -> keras.Model:
    """Like DenseNet: each layer reads what all before it have made, side by side."""
    inputs = keras.Input((pixels, pixels, 3))
    x = convolution(inputs, 2 * growth)
    for number, count in enumerate(blocks):
        for _ in range(count):
            y = layers.ReLU()(layers.BatchNormalization()(x))
            y = convolution(y, 4 * growth, 1)
            y = layers.Conv2D(growth, 3, padding="same", use_bias=False)(y)
            x = layers.Concatenate()([x, y])
        if number + 1 < len(blocks):
            x = layers.ReLU()(layers.BatchNormalization()(x))
            x = layers.Conv2D(2 * growth, 1, use_bias=False)(x)
            x = layers.AveragePooling2D(2)(x)
    return keras.Model(inputs, head(layers.ReLU()(layers.BatchNormalization()(x))))


def inverted_bottlenecks(width: int, blocks: int = 2, squeeze: bool = True) -> keras.Model:
    """Like MobileNet: wide inside, depthwise, with squeeze and excite."""
    inputs = keras.Input((16, 16, 3))
    x = convolution(inputs, width)
    for _ in range(blocks):
        y = convolution(x, 3 * width, 1)
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = squeezed(y, 3 * width) if squeeze else y
        y = convolution(y, width, 1, relu=False)
        x = layers.Add()([x, y])
    return keras.Model(inputs, head(x))


def squeezed(x: Any, filters: int) -> Any:
    """Squeeze and excite: each channel times a factor that depends on all of them."""
    y = layers.GlobalAveragePooling2D(keepdims=True)(x)
    y = layers.Conv2D(max(1, filters // 2), 1, activation="relu")(y)
    y = layers.Conv2D(filters, 1, activation="sigmoid")(y)
    return layers.Multiply()([x, y])


# Families, each with a wider member and data


def resnet(**settings: Any) -> keras.Model:
    return of_image_data(ResNet20Config(**({"width": 4, "blocks_per_stage": 1} | settings)))


def vit(**settings: Any) -> keras.Model:
    sizes = {"patch": 4, "layers": 1, "width": 8, "heads": 2, "dropout": 0.0}
    return of_image_data(VitConfig(**(sizes | settings)))


def gpt(**settings: Any) -> keras.Model:
    return of_token_data(GptConfig(**({"layers": 1, "width": 8, "heads": 2} | settings)))


def bert(task: str = "language", **settings: Any) -> keras.Model:
    sizes = {"layers": 1, "width": 8, "heads": 2, "vocabulary_size": VOCABULARY} | settings
    return of_token_data(Bert12Config(**sizes), task, CLASSES if task != "language" else 0)


def lstm(**settings: Any) -> keras.Model:
    return of_token_data(LstmConfig(**({"layers": 2, "width": 6} | settings)))


def mobile_net(alpha: float) -> keras.Model:
    return keras.applications.MobileNetV2(
        weights=None, input_shape=(32, 32, 3), alpha=alpha, classes=CLASSES
    )


def mobile_net_v3(alpha: float) -> keras.Model:
    return keras.applications.MobileNetV3Small(
        weights=None, input_shape=(32, 32, 3), alpha=alpha, classes=CLASSES
    )


Family = tuple[Callable[[], keras.Model], Callable[[], keras.Model], Any]
WIDER: dict[str, Family] = {
    "mlp": (
        lambda: of_image_data(MlpConfig(layers=(8, 6))),
        lambda: of_image_data(MlpConfig(layers=(13, 9))),
        images(),
    ),
    "resnet": (resnet, lambda: resnet(width=7), images()),
    "resnet, no norm": (
        lambda: resnet(normalization="none"),
        lambda: resnet(normalization="none", width=5),
        images(),
    ),
    "resnet, layer norm": (
        lambda: resnet(normalization="layer"),
        lambda: resnet(normalization="layer", width=8),
        images(),
    ),
    "bottlenecks": (lambda: bottlenecks(3), lambda: bottlenecks(5), images()),
    "dense net": (lambda: dense_net(3), lambda: dense_net(4), images()),
    "inverted bottlenecks": (
        lambda: inverted_bottlenecks(4),
        lambda: inverted_bottlenecks(7),
        images(),
    ),
    "MobileNetV2": (lambda: mobile_net(0.35), lambda: mobile_net(0.5), images(2, 32)),
    "MobileNetV3": (lambda: mobile_net_v3(0.25), lambda: mobile_net_v3(0.5), images(2, 32)),
    "vit": (vit, lambda: vit(width=16, heads=4), images()),
    "vit, wider heads": (vit, lambda: vit(width=24), images()),
    "vit, mlp": (vit, lambda: vit(mlp_width=50), images()),
    "gpt": (gpt, lambda: gpt(width=24, heads=6), tokens()),
    "gpt, wider heads": (gpt, lambda: gpt(width=16), tokens()),
    "gpt, untied": (
        lambda: gpt(tie_embeddings=False),
        lambda: gpt(tie_embeddings=False, width=16, heads=4),
        tokens(),
    ),
    "bert": (bert, lambda: bert(width=24, heads=6), tokens()),
    "bert, classes": (
        lambda: bert("classification"),
        lambda: bert("classification", width=16),
        tokens(),
    ),
    "lstm": (lstm, lambda: lstm(width=11), tokens()),
}


# Weights


def weights_of(model: keras.Model) -> dict[str, Any]:
    """The variables of a model by the names that graphs have for them, without seeds."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    known = {id(weight) for weight in model.weights}
    named = zip(variable_names(variables), variables, strict=True)
    return {name: variable for name, variable in named if id(variable) in known}


def values_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: np.asarray(variable) for name, variable in weights_of(model).items()}


def randomize(model: keras.Model, seed: int = 0) -> keras.Model:
    """Biases, norms and statistics as after some training: none of them 0 or 1."""
    random = np.random.default_rng(seed)
    for name, variable in weights_of(model).items():
        kind = name.rpartition("/")[2]
        if kind in ("gamma", "scale", "moving_variance"):
            value = random.uniform(0.5, 1.5, variable.shape)
        elif kind in ("beta", "bias", "moving_mean", "reverse_bias", "positions", "token", "alpha"):
            value = random.normal(0, 0.2, variable.shape)
        else:
            value = random.normal(0, 1, variable.shape) / np.sqrt(_num_read(variable.shape))
        variable.assign(value.astype("float32"))
    return model


def _num_read(shape: Sequence[int]) -> float:
    return max(1.0, float(np.prod(shape[:-1])))


@functools.cache
def parent_of(family: str) -> keras.Model:
    """The smaller one of WIDER, with random weights; made once, so leave its weights alone."""
    return randomize(WIDER[family][0]())


def wider(family: str) -> keras.Model:
    """The wider one of WIDER with its start weights, whatever it was given before; made once."""
    model, start = _wider(family)
    variables = weights_of(model)
    for name, value in start.items():
        variables[name].assign(value)
    return model


@functools.cache
def _wider(family: str) -> tuple[keras.Model, dict[str, np.ndarray]]:
    model = WIDER[family][1]()
    return model, values_of(model)


# Warm starts


def in_order(child: Graph, parent: Graph) -> list[tuple[int, int]]:
    """Each operator with the one of the same number: for models that differ in sizes only."""
    ops = [[node.op for node in graph.nodes] for graph in (child, parent)]
    assert ops[0] == ops[1]
    return [(number, number) for number in range(len(child.nodes))]


def matched(child: Graph, parent: Graph) -> Pairs:
    """As the zoo pairs them."""
    return match(prepare(outline_of(child)), prepare(outline_of(parent))).pairs


def warm(
    child: keras.Model,
    parent: keras.Model,
    pairs: Pairs | Callable[[Graph, Graph], Pairs] = matched,
    seed: int = 0,
) -> Transformed:
    """Gives a child its start weights."""
    graph, source = graph_of(child), graph_of(parent)
    chosen = pairs(graph, source) if callable(pairs) else pairs
    made = transform(graph, values_of(child), source, values_of(parent), chosen, seed=seed)
    variables = weights_of(child)
    for name, value in made.values.items():
        variables[name].assign(value)
    return made


def outputs_of(model: keras.Model, data: Any) -> list[np.ndarray]:
    """When it predicts."""
    flat = keras.tree.flatten(model(data, training=False))
    return [np.asarray(each).astype(np.float64) for each in flat]


def difference(child: keras.Model, parent: keras.Model, data: Any) -> float:
    """The largest between their outputs, as a share of the largest output."""
    ours, theirs = outputs_of(child, data), outputs_of(parent, data)
    return max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(ours, theirs, strict=True)
    )


def check_report(made: Transformed, child: keras.Model) -> None:
    """Each weight once, in the model's order, with its parameters."""
    graph = graph_of(child)
    names = [weight.name for node in graph.nodes for weight in node.weights]
    values = values_of(child)
    assert [each.name for each in made.report] == names == list(made.values)
    assert sorted(names) == sorted(values)
    for each in made.report:
        assert each.parameters == values[each.name].size
        assert made.values[each.name].shape == values[each.name].shape
        assert made.values[each.name].dtype == values[each.name].dtype
        assert np.isfinite(made.values[each.name].astype(np.float64)).all()
        assert bool(each.source) == (each.action in ("copied", "widened", "narrowed"))
    assert sum(each.parameters for each in made.report) == child.count_params()
    assert 0 <= made.carried <= 1


def step(model: keras.Model, data: Any, rate: float = 0.1, steps: int = 1, seed: int = 0) -> None:
    """Steps of gradient descent to random targets."""
    random = np.random.default_rng(seed)
    target = random.normal(size=outputs_of(model, data)[0].shape).astype(np.float32)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(data, training=True) - target))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None:
                variable.assign_sub(rate * tf.convert_to_tensor(gradient))
