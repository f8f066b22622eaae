"""Contracts: what Keras keeps of a model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from ooodist.compat import keras_model
from tests.compat.contract import Contract


def _model(**compiled: Any) -> keras.Model:
    """An inner model of one dense layer, in an outer one."""
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    numbers = keras.Input((3,))
    model = keras.Model(numbers, inner(numbers))
    model.compile("adam", "mean_squared_error", **compiled)
    return model


BATCH = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)


def _layers() -> None:
    model = _model()
    kinds = [type(layer).__name__ for layer in keras_model.layers_of(model)]
    assert kinds[0] == "Functional"
    assert {"Sequential", "Dense"} <= set(kinds)
    direct = keras_model.layers_of(model, include_self=False, recursive=False)
    assert {type(layer).__name__ for layer in direct} == {"InputLayer", "Sequential"}


def _frozen() -> None:
    norm = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), norm])
    assert keras_model.frozen_weights(model) == []
    dense = model.layers[0]
    dense.trainable = False
    assert keras_model.frozen_weights(model) == [dense.kernel, dense.bias]  # and no statistics
    dense.trainable, dense.kernel.trainable = True, False
    assert keras_model.frozen_weights(model) == [dense.kernel]


def _build() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mean_squared_error", metrics=["mae"])
    keras_model.build_with(model, BATCH)
    assert [tuple(weight.shape) for weight in model.weights] == [(3, 2), (2,)]
    assert model.optimizer.built
    assert "mae" in [metric.name for metric in keras_model.compiled_metrics(model).metrics]


def _loss() -> None:
    model = _model()
    first = keras_model.compiled_loss(model)
    model.compile("adam", "mean_squared_error")
    assert first is not None
    assert keras_model.compiled_loss(model) is not first


def _metrics() -> None:
    assert keras_model.compiled_metrics(_model()) is None
    model = _model(metrics=["mae"])
    first = keras_model.compiled_metrics(model)
    assert first in model.metrics
    model.compile("adam", "mean_squared_error", metrics=["mae"])
    assert keras_model.compiled_metrics(model) is not first


def _given_metrics() -> None:
    plain, weighted = keras.metrics.MeanAbsoluteError(), keras.metrics.MeanSquaredError()
    model = _model(metrics=[plain], weighted_metrics=[weighted])
    assert keras_model.metrics_given_to_compile(model) == [plain, weighted]
    assert keras_model.metrics_given_to_compile(_model()) == []


class _Begins(keras.callbacks.Callback):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.before: Any = "not called"
        self.epochs: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.before = keras_model.restored_epoch(self.model)
        keras_model.set_restored_epoch(self.model, self.at)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)


def _epoch() -> None:
    callback = _Begins(2)
    _model().fit(*BATCH, epochs=4, callbacks=[callback], verbose=0)
    assert callback.before is None
    assert callback.epochs == [2, 3]


def _inside_fit() -> None:
    model = _model()
    plain, seen = model.evaluate, []

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        seen.append(keras_model.is_inside_fit(kwargs))
        return plain(*args, **kwargs)

    model.evaluate = evaluate
    model.fit(*BATCH, validation_data=BATCH, verbose=0)
    model.evaluate(*BATCH, verbose=0)
    assert seen == [True, False]


def _path() -> None:
    layer = keras.layers.Dense(2, name="dense_7")
    layer.build((None, 3))
    name = layer.kernel.name
    keras_model.set_path(layer.kernel, "dense/kernel")
    assert (layer.kernel.path, layer.kernel.name) == ("dense/kernel", name)
    optimizer = keras.optimizers.Adam(name="adam")
    optimizer.build([layer.kernel])
    assert "adam/dense_kernel_momentum" in [each.path for each in optimizer.variables]


def _trained() -> None:
    fitted, by_batch, predicted, compiled = _model(), _model(), _model(), _model()
    fitted.fit(*BATCH, verbose=0)
    by_batch.train_on_batch(*BATCH)
    predicted.predict(BATCH[0], verbose=0)
    found = keras_model.trained_models()
    assert [model in found for model in (fitted, by_batch, predicted, compiled)] == [1, 1, 0, 0]


CONTRACTS = [
    Contract("Model.train_function", "keras", keras_model.trained_models, _trained),
    Contract("Variable._path", "keras", keras_model.set_path, _path),
    Contract("Layer._flatten_layers", "keras", keras_model.layers_of, _layers),
    Contract("Layer._trainable_variables", "keras", keras_model.frozen_weights, _frozen),
    Contract("Trainer._symbolic_build", "keras", keras_model.build_with, _build),
    Contract("Trainer._compile_loss", "keras", keras_model.compiled_loss, _loss),
    Contract("Trainer._compile_metrics", "keras", keras_model.compiled_metrics, _metrics),
    Contract(
        "CompileMetrics._user_metrics and _user_weighted_metrics",
        "keras",
        keras_model.metrics_given_to_compile,
        _given_metrics,
    ),
    Contract("Trainer._initial_epoch (read)", "keras", keras_model.restored_epoch, _epoch),
    Contract("Trainer._initial_epoch (set)", "keras", keras_model.set_restored_epoch, _epoch),
    Contract("evaluate(_use_cached_eval_dataset)", "keras", keras_model.is_inside_fit, _inside_fit),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()
