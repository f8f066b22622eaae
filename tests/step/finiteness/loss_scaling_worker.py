"""One worker of the jobs in test_loss_scaling.py: updates one by one where the loss is scaled.

Usage: loss_scaling_worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import ooodist

engine = ooodist.init()

import keras  # noqa: E402

from ooodist.graph.ops import ancestors, producers  # noqa: E402
from ooodist.step import execution  # noqa: E402
from tests.workers import check, run  # noqa: E402

layers, optimizers = keras.layers, keras.optimizers
BATCH, STEPS = 4, 12
PRODUCTS = 8  # of matrices in a step: three forward, three for weights and two for inputs
BROKEN = (3, 4, 9)  # the steps in which the last rank's data are not finite


def adamw() -> optimizers.Optimizer:
    """All that an update depends on besides the gradient."""
    schedule = optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)
    return optimizers.AdamW(
        schedule, weight_decay=0.5, clipnorm=0.4, use_ema=True, ema_overwrite_frequency=3
    )


def momentum() -> optimizers.Optimizer:
    return optimizers.SGD(0.05, momentum=0.9)


def model(inner: optimizers.Optimizer, **options: Any) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(100)
    made = keras.Sequential(
        [
            keras.Input((24,)),
            layers.Dense(64, activation="relu", name="layer1", kernel_constraint="max_norm"),
            layers.Dense(64, activation="relu", name="layer2"),
            layers.Dense(2, name="layer3"),
        ],
        name="net",
    )
    scaling = optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10, dynamic_growth_steps=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(scaling, loss, jit_compile=False)
    return ooodist.distribute(made, **options)


def data(accumulate: int) -> tuple[np.ndarray, np.ndarray]:
    """Of all ranks; a part of the last one's is not finite."""
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(STEPS, accumulate, engine.size, BATCH, 24)).astype(np.float32)
    y = (x.sum(axis=-1) > 0).astype(np.int32)
    x[BROKEN, -1, -1, 0, 0] = np.nan
    return x.reshape(-1, 24), y.reshape(-1)


def fitted(made: keras.Model, accumulate: int = 1) -> list[np.ndarray]:
    """Trains, and returns all that has changed."""
    x, y = data(accumulate)
    made.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return [v.numpy() for v in (*made.weights, *made.optimizer.variables)]


@contextmanager
def as_keras_does() -> Iterator[None]:
    before = execution.can_be_early
    execution.can_be_early = lambda *_: False
    try:
        yield
    finally:
        execution.can_be_early = before


def compared(
    inner: Callable[[], optimizers.Optimizer], **options: Any
) -> tuple[keras.Model, keras.Model]:
    """Two that were trained to the same numbers: as Keras does it, and early."""
    accumulate = options.get("accumulate", 1)
    with as_keras_does():
        plain = model(inner(), **options)
        expected = fitted(plain, accumulate)
    made = model(inner(), **options)
    found = fitted(made, accumulate)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert int(made.optimizer.iterations) == STEPS - len(BROKEN)
    # Steps 0 to 2, 5 to 8 and 10 to 11 are counted: it has doubled 1, 2 and 1 times, halved 3.
    assert float(made.optimizer.dynamic_scale) == 2.0 ** (10 + 4 - 3)
    engine.check_equal("weights", b"".join(value.tobytes() for value in found))
    return plain, made


def waits_for(made: keras.Model) -> set[str]:
    """The weights whose gradients the first layer of a launch's second step waits for."""
    steps = made.ooodist.strategy.inner.backward.steps[:2]  # of the first launch
    graph = steps[0].exchanges[0].op.graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    before = set(ancestors(producers(products[PRODUCTS])))
    return {w for e in steps[0].exchanges if e.op in before for w in e.weights}


@check
def the_numbers_are_those_of_keras() -> None:
    plain, made = compared(adamw, steps_per_execution=2, bucket_bytes=0)
    # The first layer waits for its own gradients alone; as Keras does it, for all.
    assert waits_for(made) < waits_for(plain)
    assert "net/layer3/kernel" not in waits_for(made)


@check
def so_with_accumulation_and_another_order() -> None:
    compared(momentum, accumulate=2, steps_per_execution=3, order="first_k", k=2)


if __name__ == "__main__":
    run(engine, sys.argv[1:])
