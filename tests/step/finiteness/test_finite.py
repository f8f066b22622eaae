"""A training ends when gradients or weights are no longer finite; nothing saves them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist.errors import UserError
from tests.job.test_distribute import data

pytestmark = pytest.mark.usefixtures("local_engine")
layers = keras.layers


class ZeroForNaN(layers.Layer):
    """As TensorFlow's fused Relu does on some processors: the loss stays finite."""

    def call(self, x: Any) -> Any:
        return keras.ops.where(keras.ops.isfinite(x), x, 0.0)


def forgiving(optimizer: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    names = [layers.Flatten(), layers.Dense(4, name="first"), ZeroForNaN(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((6, 6, 2)), *names])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False, **options)
    return model


def test_plain_keras_does_not_see_it() -> None:
    x, y = data()
    x[17] = np.nan  # of the third batch
    plain = forgiving("adam")
    assert np.isfinite(plain.fit(x, y, 8, shuffle=False, verbose=0).history["loss"]).all()
    assert np.isnan(plain.get_weights()[0]).any()


@pytest.mark.parametrize(
    ("options", "steps_per_execution"),
    [({}, 4), ({"run_eagerly": True}, 1)],
    ids=["traced, several steps", "eager"],
)
def test_a_gradient_that_is_not_finite_ends_the_training(
    options: dict[str, Any], steps_per_execution: int
) -> None:
    x, y = data()
    x[17] = np.nan
    model = ooodist.distribute(
        forgiving("adam", **options), steps_per_execution=steps_per_execution
    )
    # A single rank looks about once a second, and when the epoch ends.
    message = (
        r"^steps 1 to [3-6]: weight sequential\w*/first/kernel is no longer finite \(loss \d\."
    )
    with pytest.raises(UserError, match=message):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    healthy = ooodist.distribute(
        forgiving("adam", **options), steps_per_execution=steps_per_execution
    )
    healthy.fit(x[:16], y[:16], batch_size=8, shuffle=False, verbose=0)
    with pytest.raises(UserError, match=r"^step 3: weight \S+/kernel is no longer finite"):
        healthy.train_on_batch(x[16:24], y[16:24])


def test_an_overflow_where_the_loss_is_scaled_is_left_to_the_optimizer() -> None:
    x, y = data()
    x[17] = np.nan
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = ooodist.distribute(forgiving(scaled))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert int(scaled.iterations) == 5  # one of the six was left out
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_weights_that_are_not_finite_end_the_training_before_callbacks_save_them() -> None:
    """Where the loss is scaled, nobody looks at each step."""
    x, y = data(16)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(np.inf))
    model = ooodist.distribute(forgiving(scaled))
    called: list[int] = []
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: called.append(epoch))
    with pytest.raises(UserError, match=r"weight \S+/kernel is not finite at \d+ of 288") as error:
        model.fit(x, y, batch_size=16, verbose=0, callbacks=[record])
    assert "smaller initial_scale" in str(error.value)
    assert not called
