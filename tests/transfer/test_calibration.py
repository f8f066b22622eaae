"""New batch norms are the identity while training too, on the batch of their calibration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given
from hypothesis import strategies as st
from keras import layers

from ooodist.transfer.calibration import calibrate
from tests.thorough import few
from tests.transfer.models import values_of, warm
from tests.zoo.starts import (
    SAME,
    assert_same,
    batches,
    compiled,
    difference,
    network,
    outputs,
    state,
    stripes,
    trained,
)

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # each model takes a while
BATCH = stripes(32, seed=3)
X = BATCH[0]


@pytest.fixture(scope="module")
def source() -> keras.Model:
    return trained(network(), 10)


def copy_of(model: keras.Model) -> keras.Model:
    """To run it with ``training=True``, which moves its statistics."""
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    return copied


def in_training(model: keras.Model, x: np.ndarray = X) -> np.ndarray:
    return outputs(copy_of(model), x, training=True)


def test_before_it_a_new_batch_norm_changes_what_is_trained(source: keras.Model) -> None:
    """Or there would be nothing to calibrate."""
    child = network(6, 2, seed=1)
    warm(child, source)
    assert difference(outputs(child, X), outputs(source, X)) < SAME
    assert difference(in_training(child), in_training(source)) > 0.05


@pytest.mark.parametrize(("width", "blocks"), [(6, 2), (6, 4), (9, 3)])
def test_the_child_trains_like_its_parent(source: keras.Model, width: int, blocks: int) -> None:
    child = network(width, blocks, seed=1)
    made = warm(child, source)
    assert len(made.inserted_norms) == blocks - 1
    calibrate(child, made.inserted_norms, BATCH)
    assert difference(in_training(child), in_training(source)) < 1e-4
    assert difference(outputs(child, X), outputs(source, X)) < SAME


@few(6, phases=NO_SHRINKING)
@given(st.floats(-3, 3), st.floats(0.1, 10), st.integers(2, 40), st.integers(0, 99))
def test_whatever_comes_in(shift: float, scale: float, size: int, seed: int) -> None:
    """Also where the statistics of the parent's own batch norm are far from those of the batch."""
    parent, child = network(4, 1, seed=seed), network(4, 2, seed=seed + 1)
    parent.get_layer("norm0").moving_mean.assign(np.full(4, shift))
    made = warm(child, parent)
    x = shift + scale * stripes(size, seed)[0]
    calibrate(child, made.inserted_norms, (x, None))
    for run in (in_training, outputs):
        expected = run(parent, x)
        limit = 1e-4 * max(0.01, np.abs(expected).max())  # all units may be dead
        np.testing.assert_allclose(run(child, x), expected, rtol=0, atol=limit)


def test_nothing_else_changes(source: keras.Model) -> None:
    """Neither the statistics of other batch norms nor generators nor the optimizer."""
    child = compiled(network(6, 3, dropout=0.5, seed=1), "adam")
    child.optimizer.build(child.trainable_variables)
    child.train_on_batch(*batches(1)[0])
    made = warm(child, source)
    before = state(child)
    calibrate(child, made.inserted_norms, BATCH)
    after = state(child)
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed
    assert {name.split()[-1].split("/")[0] for name in changed} == {"norm1", "norm2"}
    assert all(layer.trainable for layer in child.layers)
    assert len(child.trainable_variables) == 3 * 3 + 2


def test_without_new_batch_norms_nothing_changes(source: keras.Model) -> None:
    child = network(6, 1, seed=1)
    made = warm(child, source)
    assert made.inserted_norms == ()
    before = state(child)
    calibrate(child, made.inserted_norms, BATCH)
    assert_same(state(child), before)


@pytest.mark.parametrize("batch", [X, (X,), (X, None), (X, BATCH[1], np.ones(32)), [X, BATCH[1]]])
def test_what_a_batch_may_be(source: keras.Model, batch: Any) -> None:
    child = network(6, 2, seed=1)
    made = warm(child, source)
    calibrate(child, made.inserted_norms, batch)
    assert difference(in_training(child), in_training(source)) < 1e-4


def test_a_dead_unit_stays_dead() -> None:
    """Its variance is 0, which nothing is divided by."""
    parent, child = network(4, 1, seed=1), network(4, 2, seed=2)
    parent.get_layer("norm0").gamma.assign([0.0, 1.0, 1.0, 1.0])
    made = warm(child, parent)
    calibrate(child, made.inserted_norms, BATCH)
    found = in_training(child)
    assert np.isfinite(found).all()
    assert difference(found, in_training(parent)) < 1e-4


def blocks_of(depth: int, **arguments: Any) -> tuple[Any, Any]:
    """Dense layers, each with such a batch norm: what goes in, and what comes out."""
    x = numbers = keras.Input((6,), name="numbers")
    for block in range(depth):
        x = layers.Dense(6, name=f"dense{block}")(x)
        x = layers.BatchNormalization(name=f"norm{block}", **arguments)(x)
        x = layers.ReLU(name=f"relu{block}")(x)
    return numbers, x


def with_norm(depth: int, **arguments: Any) -> keras.Model:
    numbers, x = blocks_of(depth, **arguments)
    return keras.Model(numbers, layers.Dense(3, name="head")(x))


VECTORS = 1 + np.random.default_rng(5).normal(size=(64, 6)).astype(np.float32)


def test_without_a_beta_the_scale_is_kept() -> None:
    """The mean is lost while training: nothing could undo it."""
    parent, child = with_norm(1, center=False), with_norm(2, center=False)
    made = warm(child, parent)
    calibrate(child, made.inserted_norms, (VECTORS,))
    assert difference(outputs(child, VECTORS), outputs(parent, VECTORS)) < SAME
    copied = copy_of(child)
    inner = keras.Model(
        copied.inputs, [copied.get_layer("dense1").output, copied.get_layer("norm1").output]
    )
    before, after = (np.asarray(each) for each in inner(VECTORS, training=True))
    assert difference(after, before - before.mean(axis=0)) < 1e-4


def test_without_a_gamma_there_is_nothing_to_calibrate() -> None:
    parent, child = with_norm(1, scale=False), with_norm(2, scale=False)
    made = warm(child, parent)
    before = values_of(child)
    calibrate(child, made.inserted_norms, (VECTORS,))
    assert_same(values_of(child), before)
    assert difference(outputs(child, VECTORS), outputs(parent, VECTORS)) < SAME


def test_a_frozen_batch_norm_stays_frozen_and_the_identity() -> None:
    parent, child = with_norm(1), with_norm(2)
    child.get_layer("norm1").trainable = False
    made = warm(child, parent)
    calibrate(child, made.inserted_norms, (VECTORS,))
    assert not child.get_layer("norm1").trainable
    assert difference(in_training(child, VECTORS), in_training(parent, VECTORS)) < 1e-4


def nested(depth: int) -> keras.Model:
    """The blocks lie inside of a model of their own."""
    inner = keras.Model(*blocks_of(depth), name="inner")
    numbers = keras.Input((6,), name="outer_numbers")
    return keras.Model(numbers, layers.Dense(2, name="head")(inner(numbers)))


def test_those_of_nested_models() -> None:
    parent, child = nested(1), nested(3)
    made = warm(child, parent)
    assert len(made.inserted_norms) == 2
    calibrate(child, made.inserted_norms, (VECTORS,))
    assert difference(in_training(child, VECTORS), in_training(parent, VECTORS)) < 1e-4
    assert difference(outputs(child, VECTORS), outputs(parent, VECTORS)) < SAME


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_norm_is_watched_once_only(fails: bool) -> None:
    """Afterwards it is called as ever, also if the pass was broken off."""
    parent, child = with_norm(1), with_norm(2)
    made = warm(child, parent)
    if fails:
        with pytest.raises(Exception, match="shape"):
            calibrate(child, made.inserted_norms, (VECTORS[:, :2],))
    else:
        calibrate(child, made.inserted_norms, (VECTORS,))
    norm = child.get_layer("norm1")
    assert norm.trainable
    assert "call" not in vars(norm)


class Subclassed(keras.Model):
    """With a ``call`` of its own, which is taken apart with symbols."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = [
            (layers.Dense(6, name=f"dense{n}"), layers.BatchNormalization(name=f"norm{n}"))
            for n in range(depth)
        ]
        self.out = layers.Dense(3, name="head")

    def call(self, x: Any, training: bool | None = None) -> Any:
        for dense, norm in self.blocks:
            x = keras.ops.relu(norm(dense(x), training=training))
        return self.out(x)


def built(make: Callable[[], keras.Model]) -> keras.Model:
    model = make()
    model(VECTORS)
    return model


def test_a_model_with_a_call_of_its_own() -> None:
    parent, child = built(lambda: Subclassed(1)), built(lambda: Subclassed(2))
    made = warm(child, parent)
    assert len(made.inserted_norms) == 1
    calibrate(child, made.inserted_norms, (VECTORS,))
    found, expected = (outputs(model, VECTORS, training=True) for model in (child, parent))
    assert difference(found, expected) < 1e-4


class Traced(Subclassed):
    """Its ``call`` is a graph already, even where all else runs step by step."""

    @tf.function
    def call(self, x: Any, training: bool | None = None) -> Any:
        return super().call(x, training)


def test_what_cannot_be_watched_is_left_as_it_is_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parent, child = built(lambda: Subclassed(1)), built(lambda: Traced(2))
    gammas = warm(child, parent).inserted_norms or ("norm1/gamma",)
    before = values_of(child)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="ooodist"):
        calibrate(child, gammas, (VECTORS,))
    assert_same(values_of(child), before)
    assert [r.getMessage() for r in caplog.records if r.name == "ooodist"] == [
        "warm start: 1 new batch norms cannot be watched, and are not calibrated"
    ]
