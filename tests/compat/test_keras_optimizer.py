"""Contracts: what Keras keeps in an optimizer."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat import keras_optimizer
from tests.compat.contract import Contract


def _rate() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    assert keras_optimizer.rate_or_schedule(keras.optimizers.SGD(schedule)) is schedule
    rate = keras_optimizer.rate_or_schedule(keras.optimizers.SGD(0.25))
    assert float(rate) == 0.25


def _iterations() -> None:
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable([1.0])])
    before = [id(variable) for variable in optimizer.variables]
    count = tf.Variable(7, dtype=tf.int64)
    with keras_optimizer.showing_iterations(optimizer, count):
        assert optimizer.iterations is count
        assert [id(variable) for variable in optimizer.variables] == before
    assert int(optimizer.iterations) == 0


def _earlier_step() -> None:
    """Two updates in one step of the weights, each as at the step it belongs to."""
    for rate in (0.5, keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)):
        weights = [[keras.Variable([1.0]), keras.Variable([2.0])] for _ in range(2)]
        plain, split = (keras.optimizers.Adam(rate, weight_decay=0.1) for _ in range(2))
        gradients = [tf.constant([0.5]), tf.constant([0.25])]
        split.build(weights[1])
        count = keras_optimizer.uncounted(split)
        now = None if callable(rate) else tf.Variable(split.learning_rate)
        for _ in range(2):
            plain.apply(gradients, weights[0])
            count.assign(split.iterations)
            split.apply(gradients[:1], weights[1][:1])
            with keras_optimizer.as_at_step(split, count, now):
                split.apply(gradients[1:], weights[1][1:])
        assert int(split.iterations) == 2
        for one, other in zip(*weights, strict=True):
            assert one.numpy() == other.numpy()


def _functions_of_steps() -> None:
    factor = tf.Variable(0.5)

    class Adjusted(keras.optimizers.schedules.ExponentialDecay):
        def __call__(self, step: tf.Tensor) -> tf.Tensor:
            return factor * super().__call__(step)

    known = (0.5, 5, 0.5)
    schedule = keras.optimizers.schedules.ExponentialDecay(*known)
    rates = (schedule, Adjusted(*known), lambda: 0.25, 0.25)
    optimizers = [keras.optimizers.SGD(rate) for rate in rates]
    answers = [keras_optimizer.is_function_of_steps(optimizer) for optimizer in optimizers]
    assert answers == [True, False, False, False]


def _averages() -> None:
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    weights = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer.build(weights)
    before = [variable.numpy() for variable in optimizer.variables[2:]]
    with keras_optimizer.averaging_only(optimizer, weights[1:]):
        optimizer.apply([tf.constant([1.0])], weights[1:])
    first, second = (variable.numpy() for variable in optimizer.variables[2:])
    assert first == before[0]
    assert second == weights[1].numpy() != before[1]
    with keras_optimizer.averaging_only(keras.optimizers.SGD(0.5), []):
        pass


def _saving() -> None:
    keras_optimizer.remember_what_saving_skips()
    from keras.src.backend.common import global_state

    skipped = global_state.get_global_attribute("saving_attr_skiplist_Optimizer")
    assert "iterations" in skipped


def _copy() -> None:
    schedule = keras.optimizers.schedules.LearningRateSchedule()
    schedule.__class__ = type("Rate", (type(schedule),), {"__call__": lambda *_: 0.25})
    optimizer = keras.optimizers.SGD(schedule, momentum=0.5)
    copy = keras_optimizer.unbuilt_copy(optimizer)
    assert float(keras.ops.convert_to_numpy(copy.learning_rate)) == 0.25
    assert copy.momentum == 0.5
    assert keras_optimizer.rate_or_schedule(optimizer) is schedule


def _clipping() -> None:
    """Some of the weights are updated as among all."""
    for options in ({"global_clipnorm": 0.1}, {"global_clipnorm": 0.1, "loss_scale_factor": 4.0}):
        weights = [[keras.Variable([1.0, 2.0]), keras.Variable([3.0])] for _ in range(2)]
        plain, partly = (keras.optimizers.SGD(1.0, **options) for _ in range(2))
        partly.build(weights[1])
        gradients = [tf.constant([0.5, 2.0]), tf.constant([0.25])]
        plain.apply(gradients, weights[0])
        with keras_optimizer.clipping_as_of_all(partly, gradients, [1]):
            partly.apply(gradients[1:], weights[1][1:])
        np.testing.assert_array_equal(weights[1][0], [1.0, 2.0])
        np.testing.assert_array_equal(weights[1][1], weights[0][1])
        assert weights[1][1].numpy() != 3.0


CONTRACTS = [
    Contract("Optimizer._learning_rate", "keras", keras_optimizer.rate_or_schedule, _rate),
    Contract("Optimizer._iterations", "keras", keras_optimizer.showing_iterations, _iterations),
    Contract("Optimizer._learning_rate", "keras", keras_optimizer.unbuilt_copy, _copy),
    Contract(
        "Optimizer._learning_rate",
        "keras",
        keras_optimizer.is_function_of_steps,
        _functions_of_steps,
    ),
    Contract("Optimizer._clip_gradients", "keras", keras_optimizer.clipping_as_of_all, _clipping),
    Contract("Optimizer.apply", "keras", keras_optimizer.as_at_step, _earlier_step),
    Contract("Optimizer.apply", "keras", keras_optimizer.uncounted, _earlier_step),
    Contract(
        "Optimizer._model_variables_moving_average",
        "keras",
        keras_optimizer.averaging_only,
        _averages,
    ),
    Contract(
        "saving_lib.get_attr_skipset", "keras", keras_optimizer.remember_what_saving_skips, _saving
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()


def test_a_save_makes_no_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mean_squared_error")
    model.optimizer.build(model.trainable_variables)
    keras_optimizer.remember_what_saving_skips()
    made = []
    plain = keras.optimizers.Optimizer.__init__
    monkeypatch.setattr(
        keras.optimizers.Optimizer,
        "__init__",
        lambda self, *args, **named: (made.append(self), plain(self, *args, **named))[1],
    )
    model.save(tmp_path / "model.keras")
    assert made == []
