"""``distribute`` where a model computes gradients in a way of its own."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.errors import UserError
from tests.graph.test_order import first_k_order
from tests.job.test_distribute import fitted

pytestmark = pytest.mark.usefixtures("local_engine")
layers = keras.layers


class Adversaries(keras.Model):
    """Two networks, an optimizer and a backward pass for each, and no call."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(1)]
        )
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(5), layers.Dense(4)])
        self.generator_optimizer = keras.optimizers.Adam(1e-2)

    def train_step(self, data: Any) -> Any:
        real, noise = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(self.generator(noise)) - self.critic(real))
        weights = self.critic.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            fooled = -tf.reduce_mean(self.critic(self.generator(noise)))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(fooled, weights), weights)
        return {"critic": loss, "generator": fooled}


def test_two_optimizers_have_the_state_that_plain_keras_gives_them() -> None:
    real, noise = (np.random.default_rng(n).normal(size=(48, n)) for n in (4, 3))

    def trained(**how: Any) -> keras.Model:
        keras.backend.clear_session()  # the same names
        keras.utils.set_random_seed(2)
        model = Adversaries()
        model.compile(
            keras.optimizers.Adam(1e-2, use_ema=True, ema_overwrite_frequency=2), jit_compile=False
        )
        if how:
            ooodist.distribute(model, **how)
        model.fit(real.astype("f"), noise.astype("f"), batch_size=8, shuffle=False, verbose=0)
        return model

    def state(model: keras.Model) -> list[np.ndarray]:
        kept = [*model.optimizer.variables, *model.generator_optimizer.variables]
        return [v.numpy() for v in (*model.variables, *kept)]

    units: dict[str, None] = {}  # of both passes

    def note(pass_units: Any) -> tuple[str, ...]:
        order = first_k_order(pass_units, 1)
        units.update(dict.fromkeys(order))
        return order

    plain = state(trained())
    for order, steps in ((note, 1), (units, 2)):
        given = order if order is note else list(units)
        ours = trained(order=given, steps_per_execution=steps)
        assert all(step.order for step in ours.ooodist.strategy.inner.backward.steps)
        for a, b in zip(state(ours), plain, strict=True):
            np.testing.assert_array_equal(a, b)


def test_weights_that_only_a_train_step_makes_are_named() -> None:
    class Late(Adversaries):
        def __init__(self) -> None:
            super().__init__()
            self.critic = keras.Sequential([layers.Dense(1, name="unknown")], name="late")

    model = Late()
    model.compile("sgd")
    ooodist.distribute(model)
    with pytest.raises(UserError, match=r"weights of late, unknown in model .* build\(\)"):
        model.fit(np.ones((8, 4)), np.ones((8, 3)), verbose=0)


class Recomputed(layers.Layer):
    """Gradients that are made with a tape of their own."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.inner = layers.Dense(8, activation="tanh")
        self.by_hand = by_hand

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            def gradient(slope: Any, variables: Any = None) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    again = self.inner(x)
                first, *others = tape.gradient(again, [x, *variables], slope)
                return first, others

            return self.inner(x), gradient

        return run(x) if self.by_hand else tf.recompute_grad(lambda x: self.inner(x))(x)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_tape_inside_a_gradient_is_not_the_steps_own(accumulate: int) -> None:
    def trained(ours: bool) -> keras.Model:
        keras.backend.clear_session()
        keras.utils.set_random_seed(2)
        parts = [Recomputed(by_hand=False), Recomputed(by_hand=True), layers.Dense(3)]
        model = keras.Sequential([keras.Input((6, 6, 2)), layers.Flatten(), *parts])
        model.compile(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=None if ours else accumulate)
            if accumulate > 1
            else keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        if ours:
            ooodist.distribute(model, order="first_k", k=2, accumulate=accumulate)
        else:
            model.optimizer.build(model.trainable_variables)  # else Keras traces its step twice
        fitted(model, epochs=1)
        return model

    plain, ours = trained(False), trained(True)
    (step,) = ours.ooodist.strategy.inner.backward.steps
    assert len({name for unit in step.backward for name in unit.variables}) == 6
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6 if accumulate > 1 else 0)


def test_gradients_under_another_tape_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Steep(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            weights = self.trainable_variables
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    loss = self.compute_loss(x, y, self(x, training=True))
                slopes = inner.gradient(loss, weights)
                total = loss + 0.1 * tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])
            self.optimizer.apply(tape.gradient(total, weights), weights)
            return {"total": total}

    def trained(ours: bool) -> keras.Model:
        keras.utils.set_random_seed(2)
        model = Steep([keras.Input((6, 6, 2)), layers.Flatten(), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
        if ours:
            ooodist.distribute(model)
        fitted(model)
        return model

    ours, plain = trained(True), trained(False)
    assert len(ours.ooodist.strategy.inner.backward.steps) == 1
    assert "while another tape records" in caplog.text
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
