"""Weights are divided into buckets, whose gradients become one array and come back."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.pipeline.runtime.buckets import Bucket, by_layer


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_packs_and_unpacks(dtype: str) -> None:
    """16-bit floats are summed in 32 bits, and rounded once."""
    shapes: list[tuple[int, ...]] = [(3, 2), (), (0,), (5,)]
    variables = [keras.Variable(np.ones(shape), dtype=dtype) for shape in shapes]
    bucket = Bucket({str(number): each for number, each in enumerate(variables)})
    assert bucket.sizes == [6, 1, 0, 5]
    assert bucket.dtype == (np.float64 if dtype == "float64" else np.float32)
    random = np.random.default_rng(1)
    gradients = [tf.constant(random.normal(size=shape), dtype) for shape in shapes]
    flat = bucket.pack(gradients)
    assert flat.shape == (12,)
    assert flat.dtype == bucket.dtype
    tensor = bucket.as_tensor(flat)
    flat += flat  # what MPI writes into it is in the tensor, which shares its memory
    for gradient, found in zip(gradients, bucket.unpack(tensor), strict=True):
        assert found.dtype == gradient.dtype
        np.testing.assert_array_equal(found.numpy(), (gradient + gradient).numpy())


def test_layers_stay_together() -> None:
    """But for weights that are summed in another dtype."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(2, name="one"),
            keras.layers.Dense(2, name="two", dtype="float64"),
        ]
    )
    one, two = model.layers
    other = keras.Variable([0.0], dtype="float64", name="scale")
    weights = [*one.weights, *two.weights, other]
    assert by_layer(weights) == [tuple(one.weights), tuple(two.weights), (other,)]
    mixed = keras.layers.Layer()
    dtypes = ("float32", "bfloat16", "float64")
    narrow, narrower, wide = (mixed.add_weight((2,), dtype=dtype) for dtype in dtypes)
    assert by_layer(mixed.weights) == [(narrow, narrower), (wide,)]
    assert by_layer([]) == []


def test_packed_gradients_are_copied() -> None:
    variable = tf.Variable([1.0, 2.0])
    bucket = Bucket({"weight": keras.Variable([0.0, 0.0])})
    flat = bucket.pack([variable.value()])
    flat += 1
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert not bucket.empty().any()
