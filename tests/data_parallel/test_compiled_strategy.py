"""Steps that XLA compiles, on one process; on several: ``tests/job/checks_of_numbers.py``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.data_parallel.compiled_strategy import CompiledDataParallel
from ooodist.errors import UserError
from ooodist.settings.sections import PlanningConfig
from ooodist.trainer.live import TIMED_CALLS, WARM_UP_CALLS
from ooodist.trainer.trial import LAUNCHES

pytestmark = pytest.mark.usefixtures("local_engine")
layers = keras.layers
ALWAYS = PlanningConfig(share=1e9)  # whatever a trial takes
UNTIL_TRIED = WARM_UP_CALLS + TIMED_CALLS + LAUNCHES  # steps, and a round of one way


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "seen": tf.constant(1.0)}


class InPython(layers.Layer):
    def call(self, x: Any) -> Any:
        found = tf.numpy_function(np.tanh, [tf.stop_gradient(x)], x.dtype)
        return x + tf.ensure_shape(found, x.shape)


def make(kind: Any = keras.Model, last: Any = None, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((6,))
    y = layers.BatchNormalization()(layers.Dense(8, activation="gelu")(x))
    y = layers.Dropout(0.25, seed=2)(y)
    model = kind(x, (last or layers.Identity())(layers.Dense(3)(y)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **options)
    return model


def fitted(model: keras.Model, steps: int = 6) -> list[np.ndarray]:
    numbers = np.random.default_rng(0)
    count = 8 * steps
    x, y = numbers.normal(size=(count, 6)).astype(np.float32), numbers.integers(0, 3, count)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def is_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_compiled_step_has_the_bits_of_keras_compiled_step() -> None:
    plain = fitted(make(jit_compile=True))
    uncompiled = fitted(make(jit_compile=False))
    assert not is_equal(plain, uncompiled)  # or nothing is tested
    assert is_equal(fitted(ooodist.distribute(make(), jit_compile=True)), plain)
    # On a host without accelerators, compile() says True only if the user does.
    said_by_compile = ooodist.distribute(make(OwnStep, jit_compile=True), steps_per_execution=2)
    assert is_equal(fitted(said_by_compile), plain)
    switched_off = ooodist.distribute(make(jit_compile=True), jit_compile=False)
    assert is_equal(fitted(switched_off), uncompiled)


def test_both_ways_take_turns_and_one_stays(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ooodist")
    model = ooodist.distribute(make(), jit_compile="auto", planning=ALWAYS)
    fitted(model, UNTIL_TRIED - LAUNCHES)
    assert model.ooodist.strategy.is_trying  # it goes on in the next fit
    for _ in range(40):
        fitted(model, 2 * LAUNCHES)
        if not model.ooodist.strategy.is_trying:
            break
    (line,) = [line for line in caplog.messages if line.startswith("tried in training")]
    assert "not compiled" in line
    assert ", compiled" in line
    steps = len(model.ooodist.strategy.backward.steps)
    before = model.optimizer.iterations.numpy()
    fitted(model, 4)
    assert model.optimizer.iterations.numpy() == before + 4
    assert len(model.ooodist.strategy.backward.steps) == steps  # nothing is traced again


def test_a_short_training_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ooodist")
    ours = fitted(ooodist.distribute(make(), jit_compile="auto"), UNTIL_TRIED)
    assert is_equal(ours, fitted(make(jit_compile=False), UNTIL_TRIED))
    assert not caplog.messages


def test_batches_of_many_shapes_are_not_compiled_on_trial() -> None:
    model = ooodist.distribute(make(), jit_compile="auto", planning=ALWAYS)
    numbers = np.random.default_rng(0)

    def batches() -> Any:
        for number in range(UNTIL_TRIED):
            x = numbers.normal(size=(1 + number % 3, 6)).astype(np.float32)
            yield x, numbers.integers(0, 3, len(x))

    model.fit(batches(), verbose=0)
    assert not model.ooodist.strategy.is_trying


def test_what_xla_cannot_compile_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match=r"XLA cannot compile .*PyFunc.* is True; leave it out"):
        fitted(ooodist.distribute(make(last=InPython()), jit_compile=True))
    ours = ooodist.distribute(make(last=InPython()), jit_compile="auto", planning=ALWAYS)
    plain = fitted(make(last=InPython(), jit_compile=False), UNTIL_TRIED + LAUNCHES)
    assert is_equal(fitted(ours, UNTIL_TRIED + LAUNCHES), plain)
    (line,) = [line for line in caplog.messages if "XLA cannot compile" in line]
    assert line.endswith("it is not compiled")


def test_a_single_worker_tries_to_compile_where_several_try_plans_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "ooodist")
    model = ooodist.distribute(make(), order="planned", jit_compile="auto", planning=ALWAYS)
    assert any("there is one worker, so no plan is tried" in line for line in caplog.messages)
    fitted(model, UNTIL_TRIED - LAUNCHES)
    assert isinstance(model.ooodist.strategy.inner, CompiledDataParallel)
    assert model.ooodist.strategy.is_trying


def test_compile_does_not_take_the_order_from_a_single_worker() -> None:
    ours = ooodist.distribute(make(jit_compile=True), order="planned")
    assert not isinstance(ours.ooodist.strategy.inner, CompiledDataParallel)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"order": "first_k", "k": 1},
            "auto, but the order is first_k with k = 1: steps",
        ),
        ({"accumulate": 2, "on_nan": "skip"}, "but accumulate is 2: steps that XLA"),
        ({"elastic": {"rho": 0.5}}, "but elastic trains some of the weights"),
        ({"jit_compile": "perhaps"}, "jit_compile is perhaps; it must be auto or true or false or"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ooodist.distribute(make(), **{"jit_compile": "auto", **options})


def test_an_eager_model_is_refused() -> None:
    with pytest.raises(UserError, match="but the model runs eagerly; leave it out"):
        fitted(ooodist.distribute(make(run_eagerly=True), jit_compile=True))
