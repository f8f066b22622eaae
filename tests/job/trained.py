"""What the checks of two real workers train; importing it starts the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ooodist

engine = ooodist.init()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.workers import images  # noqa: E402

layers = keras.layers
rank, size = ooodist.rank(), ooodist.size()
BATCH = 4


class Recomputed(layers.Conv2D):
    """Its activation is computed again in the backward pass."""

    def call(self, x: Any) -> Any:
        return tf.recompute_grad(super().call)(x)


def convolutional(frozen_norm: bool = True, recompute: bool = False) -> keras.Model:
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    norm = layers.BatchNormalization()
    norm.trainable = not frozen_norm
    kind = Recomputed if recompute else layers.Conv2D
    y = kind(8, 3, padding="same")(norm(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(image, layers.Dense(2)(x))


def linear() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(2)])


def compiled(model: keras.Model, optimizer: Any, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"metrics": ["accuracy"], **options}
    model.compile(optimizer, loss, jit_compile=False, **options)
    return model


def fresh(make: Callable[[], keras.Model], seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return make()


def built(model: keras.Model) -> keras.Model:
    """Its optimizer is built, or plain Keras would trace the step twice."""
    model.optimizer.build(model.trainable_variables)
    return model


def values(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in model.trainable_variables]


def assert_equal_ranks(model: keras.Model) -> None:
    engine.check_equal("weights", b"".join(w.tobytes() for w in values(model)))


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], relative: float = 1e-6) -> None:
    """Over all weights together, in the Euclidean norm."""
    far = np.sqrt(sum(float(np.sum((a - b) ** 2.0)) for a, b in zip(ours, theirs, strict=True)))
    scale = np.sqrt(sum(float(np.sum(b**2.0)) for b in theirs))
    assert far <= relative * scale, f"relative difference {far / scale:.2e} > {relative:.0e}"


def trained_like_one_process(
    make: Callable[[], keras.Model], optimizer: Callable[[], Any], **options: Any
) -> None:
    """20 steps here against 20 steps of plain Keras on the concatenated batches, by rank 0."""
    tolerance = options.pop("tolerance", 1e-6)
    accumulate = options.get("accumulate", 1)
    x, y = images(20 * BATCH * size * accumulate)
    ours = compiled(fresh(make, 100 + rank), optimizer())  # other weights on each rank
    ooodist.distribute(ours, **options)
    history = ours.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    assert_equal_ranks(ours)
    engine.check_equal("history", str(history))
    assert len(ours.ooodist.strategy.inner.backward.steps) >= 1
    assert int(ours.optimizer.iterations) == 20
    if rank:
        return
    alone = built(compiled(fresh(make, 100), optimizer()))
    plain = alone.fit(x, y, batch_size=BATCH * size * accumulate, shuffle=False, verbose=0).history
    assert_close(values(ours), values(alone), tolerance)
    for name in plain:
        np.testing.assert_allclose(history[name], plain[name], rtol=10 * tolerance)
