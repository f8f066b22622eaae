"""What Keras would save, and where, without saving it."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from ooodist.compat import keras_deferred, keras_saving
from ooodist.compat.keras_saving import configuration, layout_of
from tests.compat.contract import Contract


def compiled(model: keras.Model, optimizer: object = "adam") -> keras.Model:
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def attention() -> keras.Model:
    inputs = keras.Input((8,), dtype="int32")
    hidden = keras.layers.Embedding(20, 16)(inputs)
    hidden = keras.layers.MultiHeadAttention(2, 8, dropout=0.1)(hidden, hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.GRU(4)(keras.layers.Dropout(0.2)(hidden))
    outputs = keras.layers.Dense(3, dtype="bfloat16")(hidden)
    adam = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(use_ema=True))
    return compiled(keras.Model(inputs, outputs), adam)


def nested() -> keras.Model:
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(2)])
    return compiled(keras.Sequential([keras.Input((2,)), inner, keras.layers.Dense(3)]), "muon")


def shared() -> keras.Model:
    first, second = keras.Input((4,)), keras.Input((4,))
    dense = keras.layers.Dense(4)
    return compiled(keras.Model([first, second], dense(dense(first)) + dense(second)), "rmsprop")


def convolutions() -> keras.Model:
    layers = [
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(4, 3, use_bias=False),
        keras.layers.DepthwiseConv2D(3),
        keras.layers.SeparableConv2D(4, 3),
        keras.layers.EinsumDense("abcd,de->abce", output_shape=(2, 2, 5), bias_axes="e"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ]
    return compiled(keras.Sequential(layers), keras.optimizers.SGD(0.1, momentum=0.9))


def saved_by_keras(model: keras.Model, folder: Path) -> tuple[dict[str, str], dict[str, object]]:
    """The groups and the values in the file that Keras writes."""
    model.save(folder / "a.keras")
    groups: dict[str, str] = {}
    values: dict[str, object] = {}

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset):
            values[path] = node[()]
        elif path.split("/")[-1] == "vars":
            groups[path] = node.attrs.get("name", "")

    with zipfile.ZipFile(folder / "a.keras") as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content) as weights:
        weights.visititems(visit)
    return groups, values


def check_layout(make: Callable[[], keras.Model]) -> None:
    """What is noted is what Keras saves."""
    model = make()
    with tempfile.TemporaryDirectory() as folder:
        groups, values = saved_by_keras(model, Path(folder))
    layout = keras_saving.layout_of(model)
    assert layout.groups == groups
    assert layout.values.keys() == values.keys()
    for place, value in values.items():
        noted = layout.values[place]
        assert isinstance(noted, keras.Variable)
        assert noted.numpy().tobytes() == np.asarray(value).tobytes(), place
        assert place in layout.places_of(noted)
    for variable in (*model.weights, *model.optimizer.variables):
        assert layout.places_of(variable)
    assert layout.assets == {}


def _layout() -> None:
    check_layout(attention)


def _configuration() -> None:
    model = convolutions()
    config, metadata = keras_saving.configuration(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "a.keras")
        with zipfile.ZipFile(Path(folder) / "a.keras") as archive:
            assert json.loads(config) == json.loads(archive.read("config.json"))
    assert json.loads(metadata)["keras_version"] == keras.__version__


CONTRACTS = [
    Contract("saving_lib._save_state", "keras", keras_saving.layout_of, _layout),
    Contract(
        "saving_lib._serialize_model_as_json",
        "keras",
        keras_saving.configuration,
        _configuration,
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_contract(contract: Contract) -> None:
    contract.hold()


@pytest.mark.parametrize("make", [nested, shared, convolutions])
def test_other_kinds_of_layers(make: Callable[[], keras.Model]) -> None:
    check_layout(make)


def test_no_value_is_needed() -> None:
    whole = attention()
    expected = layout_of(whole)
    model = attention()
    for variable in (*model.weights, *model.optimizer.variables):
        if len(variable.shape):
            keras_deferred.release(variable, "nobody")
    layout = layout_of(model)
    assert layout.groups.keys() == expected.groups.keys()
    assert layout.values.keys() == expected.values.keys()
    config, _ = configuration(model)
    assert json.loads(config)["class_name"] == "Functional"


def test_an_optimizer_saves_as_before() -> None:
    model = nested()
    layout_of(model)
    store: dict[str, np.ndarray] = {}
    model.optimizer.save_own_variables(store)
    assert len(store) == len(model.optimizer.variables)
    assert all(isinstance(value, np.ndarray | np.generic) for value in store.values())
