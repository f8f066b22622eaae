"""Probing finds the best of several starts, and leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from ooodist.errors import UserError
from ooodist.transfer.probe import probe
from tests.transfer.models import values_of
from tests.zoo.starts import (
    CLASSES,
    PIXELS,
    assert_same,
    batches,
    compiled,
    network,
    state,
    stripes,
    trained,
)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0, use_ema=True),
    "schedule": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.01, 50), weight_decay=0.01
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}
BATCHES = batches(3)


@pytest.fixture(scope="module")
def starts() -> list[dict[str, np.ndarray]]:
    """Three, of which the second is the best."""
    models = [network(seed=1), trained(network(seed=2), 40), network(seed=3)]
    return [values_of(model) for model in models]


def generators() -> tuple[Any, ...]:
    """The states of all that draw random numbers for a process."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), rest


@pytest.mark.parametrize(
    ("optimizer", "steps_before"), [("adam", 0), *((name, 2) for name in OPTIMIZERS)]
)
def test_the_best_is_found_and_nothing_is_changed(
    optimizer: str, steps_before: int, starts: list[dict[str, np.ndarray]]
) -> None:
    model = compiled(network(dropout=0.2), OPTIMIZERS[optimizer]())
    model.optimizer.build(model.trainable_variables)
    for step in range(steps_before):
        model.train_on_batch(*stripes(16, step))
    before, generators_before = state(model), generators()
    losses = probe(model, starts, BATCHES, 6)
    assert int(np.argmin(losses)) == 1
    assert np.isfinite(losses).all()
    assert_same(state(model), before)
    assert generators() == generators_before


def test_what_comes_after_is_as_without_probing(starts: list[dict[str, np.ndarray]]) -> None:
    """Steps of training, bit for bit: dropout, batch norm, moments, metrics."""
    found = []
    for probes in (False, True):
        model = compiled(network(dropout=0.3, seed=4), keras.optimizers.Adam(0.01))
        if probes:
            probe(model, starts, BATCHES, 4)
        logs = [model.train_on_batch(*batch) for batch in BATCHES]
        found.append((np.array(logs), state(model)))
    (logs, one), (others, other) = found
    np.testing.assert_array_equal(logs, others)
    for value, its in zip(one.values(), other.values(), strict=True):
        np.testing.assert_array_equal(value, its)


def test_each_start_has_the_same_conditions(starts: list[dict[str, np.ndarray]]) -> None:
    """Also the same random numbers: no start is better for what another has left behind."""
    model = compiled(network(dropout=0.5), keras.optimizers.Adam(0.05))
    losses = probe(model, [starts[0], starts[1], starts[0], starts[1]], BATCHES, 5)
    assert losses[0] == losses[2]
    assert losses[1] == losses[3]


def test_the_loss_is_that_of_the_last_half_of_the_steps(
    starts: list[dict[str, np.ndarray]],
) -> None:
    model = compiled(network(), keras.optimizers.SGD(0.05))
    [found] = probe(model, starts[:1], BATCHES, 5)
    by_hand = compiled(network(), keras.optimizers.SGD(0.05))
    by_hand.set_weights([starts[0][weight.path] for weight in by_hand.weights])
    losses = []
    for step in range(5):
        by_hand.reset_metrics()
        losses.append(by_hand.train_on_batch(*BATCHES[step % 3])[0])
    assert found == pytest.approx(np.mean(losses[2:]), rel=1e-4)


def test_no_number_loses(starts: list[dict[str, np.ndarray]]) -> None:
    broken = {name: np.full_like(value, np.nan) for name, value in starts[0].items()}
    model = compiled(network())
    before = state(model)
    losses = probe(model, [broken, starts[0], broken], BATCHES, 2)
    assert losses[0] == losses[2] == np.inf
    assert np.isfinite(losses[1])
    assert_same(state(model), before)


def test_sample_weights_count(starts: list[dict[str, np.ndarray]]) -> None:
    x, y = BATCHES[0]
    weights = [np.ones(len(x), np.float32), np.zeros(len(x), np.float32)]
    model = compiled(network())
    plain, ones, zeros = (
        probe(model, starts[:1], [batch], 1)[0]
        for batch in ((x, y), (x, y, weights[0]), (x, y, weights[1]))
    )
    assert ones == pytest.approx(plain, rel=1e-6)
    assert zeros == 0


def test_what_fails_leaves_no_trace_either(starts: list[dict[str, np.ndarray]]) -> None:
    model = compiled(network(dropout=0.5))
    before = state(model)
    odd = (np.zeros((4, PIXELS, PIXELS, 3), np.float32), np.zeros(4, np.int32))
    with pytest.raises(Exception, match="shape"):
        probe(model, starts, [BATCHES[0], odd], 4)
    assert_same(state(model), before)


def test_not_compiled(starts: list[dict[str, np.ndarray]]) -> None:
    with pytest.raises(UserError) as caught:
        probe(network(), starts, BATCHES, 2)
    assert str(caught.value) == (
        "warm_start.probe_steps trains for some steps, but the model is not compiled; compile it "
        "before the warm start, or leave probe_steps out"
    )


def test_several_outputs_and_losses_of_layers() -> None:
    """The loss is the whole one, as fit would see it."""

    def make() -> keras.Model:
        image = keras.Input((PIXELS, PIXELS, 1), name="image")
        x = layers.Flatten(name="flat")(image)
        x = layers.Dense(8, kernel_regularizer="l2", name="hidden")(x)
        outputs = {
            "one": layers.Dense(CLASSES, name="one")(x),
            "two": layers.Dense(1, name="two")(x),
        }
        model = keras.Model(image, outputs)
        loss = {
            "one": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "two": "mean_squared_error",
        }
        model.compile("adam", loss, loss_weights={"one": 1.0, "two": 0.5}, jit_compile=False)
        return model

    x, y = BATCHES[0]
    batch = (x, {"one": y, "two": y[:, None].astype(np.float32)})
    found = []
    for probes in (False, True):
        keras.utils.set_random_seed(3)
        model = make()
        start = values_of(model)
        if probes:
            [loss] = probe(model, [start], [batch], 1)
            assert loss == pytest.approx(found[0][0], rel=1e-5)
        history = model.fit(tf.data.Dataset.from_tensors(batch), epochs=2, verbose=0)
        found.append((history.history["loss"][0], model.get_weights(), history.history))
    (_, one, logs), (_, other, others) = found
    for mine, its in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert logs == others
