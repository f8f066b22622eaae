"""Contracts: what Keras keeps of a variable."""

from __future__ import annotations

import keras

from ooodist.compat import keras_variable
from tests.compat.contract import Contract


def _path() -> None:
    layer = keras.layers.Dense(2, name="dense_7")
    layer.build((None, 3))
    name = layer.kernel.name
    keras_variable.set_path(layer.kernel, "dense/kernel")
    assert (layer.kernel.path, layer.kernel.name) == ("dense/kernel", name)
    optimizer = keras.optimizers.Adam(name="adam")
    optimizer.build([layer.kernel])
    assert "adam/dense_kernel_momentum" in [each.path for each in optimizer.variables]


def test_the_path_of_a_variable_can_be_changed() -> None:
    Contract("Variable._path", "keras", keras_variable.set_path, _path).hold()
