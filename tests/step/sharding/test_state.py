"""Bytes of weights and optimizer state, against those that an optimizer really makes."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from ooodist.compat.keras_deferred import has_value, made_without_values
from ooodist.compat.keras_optimizer import unbuilt_copy
from ooodist.step.sharding.state import optimizer_bytes, size_of, state_bytes

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda: keras.optimizers.SGD(momentum=0.9),
    "adam": keras.optimizers.Adam,
    "averages": lambda: keras.optimizers.AdamW(use_ema=True, weight_decay=0.1),
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(momentum=0.5)),
    "schedule": lambda: keras.optimizers.SGD(Halving(), momentum=0.9),
}
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "averages": 3, "amsgrad": 3, "scaled": 2}


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras cannot make of its configuration: it is not registered."""

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        return 0.5 ** keras.ops.cast(step, "float32")


def build() -> keras.Model:
    image = keras.Input((4, 4, 2))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 2)(image))
    frozen = keras.layers.Dense(5, trainable=False)
    x = frozen(keras.layers.Dropout(0.5)(keras.layers.Flatten()(x)))
    return keras.Model(image, keras.layers.Dense(7, dtype="float16")(x))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_that_an_optimizer_keeps_is_counted(name: str) -> None:
    model = build()
    model.compile(OPTIMIZERS[name]())
    found = state_bytes(model)  # before it is built
    assert not model.optimizer.built
    model.optimizer.build(model.trainable_variables)
    assert state_bytes(model) == found
    assert found.keys() == {variable.path for variable in model.variables}
    for path, size in optimizer_bytes(model).items():
        weight = next(each for each in model.trainable_variables if each.path == path)
        assert found[path] == size_of(weight) + size
    kept = [v for v in (*model.variables, *model.optimizer.variables) if len(v.shape)]
    scalars = [v for v in model.variables if not len(v.shape)]
    assert sum(found.values()) == sum(v.numpy().nbytes for v in (*kept, *scalars))
    if name in SLOTS:
        kernel, *_ = model.trainable_variables
        assert found[kernel.path] == (1 + SLOTS[name]) * size_of(kernel)
        statistics = model.layers[2].moving_mean
        assert found[statistics.path] == size_of(statistics) == 4 * 3


def test_an_optimizer_that_makes_values_need_not_be_built() -> None:
    model = build()
    model.compile(keras.optimizers.Adafactor())
    before = state_bytes(model)
    kernel = model.layers[-1].kernel  # it keeps a row and a column for it
    assert before[kernel.path] > size_of(kernel) + 4 * sum(kernel.shape)
    model.optimizer.build(model.trainable_variables)
    assert state_bytes(model) == before


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_value_is_needed(name: str) -> None:
    def suffixes(found: dict[str, int]) -> list[tuple[str, int]]:  # layers are numbered on
        return [(path.partition("/")[2], size) for path, size in found.items()]

    expected, model = build(), made_without_values(build)
    for each in (expected, model):
        each.compile(OPTIMIZERS[name]())
    assert suffixes(state_bytes(model)) == suffixes(state_bytes(expected))
    assert not any(map(has_value, model.variables))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_copy_updates_alike_and_shares_nothing(name: str) -> None:
    weights = keras.Variable(np.ones(3, np.float32)), keras.Variable(np.ones(3, np.float32))
    optimizer = OPTIMIZERS[name]()
    copy = unbuilt_copy(optimizer)
    assert type(copy) is type(optimizer)
    assert not copy.built
    for each, weight in zip((optimizer, copy), weights, strict=True):
        each.apply([keras.ops.ones(3)], [weight])
    np.testing.assert_array_equal(*(weight.numpy() for weight in weights))
    assert (weights[0].numpy() != 1).all()
    assert not {*map(id, optimizer.variables)} & {*map(id, copy.variables)}
