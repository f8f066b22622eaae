"""What a model is asked: numbers such as it takes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from ooodist.transfer.answers import Question, ask, difference
from ooodist.transfer.graph.keras_graph import graph_of
from tests.transfer.models import chain


class Lookup(layers.Layer):
    """Nothing is known of it; numbers that its table lacks are an error."""

    def build(self, shape: Any) -> None:
        self.places = self.add_weight(shape=(16, 3))

    def call(self, x: Any) -> Any:
        size = tf.shape(x)[1]
        tf.debugging.assert_less_equal(size, 16)
        return tf.gather(self.places, tf.cast(x, "int32")) + self.places[:size]

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape, 3)


class Tokens(keras.Model):
    """Its inputs, as Keras has them, are floats."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = layers.Embedding(50, 4), layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.head(self.table(x))


def called(model: keras.Model) -> keras.Model:
    model(np.zeros((4, 5), "int32"))
    return model


def image(*first: layers.Layer) -> keras.Model:
    return chain(*first, layers.Conv2D(2, 3), layers.LayerNormalization(), shape=(8, 8, 3))


IMAGENET = {"mean": [123.7, 116.3, 103.5], "variance": [3409.0, 3263.0, 3292.0]}
TAKEN = {
    "floats": (lambda: chain(layers.Dense(3), shape=(6,)), (4, 6), 0),
    "tokens declared as floats": (lambda: chain(layers.Embedding(50, 4), shape=(6,)), (4, 6), 50),
    "tokens of a subclass": (lambda: called(Tokens()), (4, 5), 50),
    "an unknown table": (lambda: chain(Lookup(), shape=(None,)), (4, 8), 2),
    "0 to 255": (lambda: image(layers.Rescaling(1 / 255)), (4, 8, 8, 3), 256),
    "0 to 255 to -1 to 1": (lambda: image(layers.Rescaling(1 / 127.5, -1)), (4, 8, 8, 3), 256),
    "a flip first": (
        lambda: image(layers.RandomFlip(), layers.Rescaling(1 / 255)),
        (4, 8, 8, 3),
        256,
    ),
    "mean and variance": (lambda: image(layers.Normalization(**IMAGENET)), (4, 8, 8, 3), 241),
    "0 to 1": (lambda: image(layers.Rescaling(2.0, -1)), (4, 8, 8, 3), 0),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_numbers_are_those_that_the_model_takes(kind: str) -> None:
    make, shape, below = TAKEN[kind]
    model = make()
    answers = ask(model, graph_of(model))
    assert answers is not None
    assert answers.questions == (Question(shape, below),)
    assert difference(model, answers) == pytest.approx(0, abs=1e-5)
