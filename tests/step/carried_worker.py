"""One worker of the jobs in test_carried.py: exchanges that outlive their call, on all ranks.

Usage: carried_worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402

from ooodist.planner.data_parallel.plan import Plan, PlannedExchange  # noqa: E402
from tests.workers import check, run  # noqa: E402

layers = keras.layers
BATCH, STEPS = 4, 5
KERNELS = tuple(f"net/layer{number}/kernel" for number in (1, 2, 3))
BIASES = tuple(f"net/layer{number}/bias" for number in (1, 2, 3))
# The lowest two kernels in chunks, the biases in one bucket.
EXCHANGES = (
    PlannedExchange((KERNELS[2],)),
    PlannedExchange((KERNELS[0],), 0, 2),
    PlannedExchange((KERNELS[0],), 1, 2),
    PlannedExchange(BIASES),
    PlannedExchange((KERNELS[1],), 0, 2),
    PlannedExchange((KERNELS[1],), 1, 2),
)
CARRIED = (*BIASES, KERNELS[1])
Optimizer = keras.optimizers.Optimizer
State = list[np.ndarray]


def plan(carried: Sequence[str] = CARRIED, steps: int = 1, **changes: Any) -> Plan:
    made = Plan("carrying", None, EXCHANGES, credit=2, carried=tuple(carried))
    by_urgency = engine.name == "byteps"
    return replace(made, steps_per_execution=steps, by_urgency=by_urgency, **changes)


def momentum() -> Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.3)


def adamw() -> Optimizer:
    """All that an update depends on besides the gradient."""
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)
    return keras.optimizers.AdamW(
        schedule, weight_decay=0.05, clipnorm=0.4, use_ema=True, ema_overwrite_frequency=3
    )


def adam() -> Optimizer:
    return keras.optimizers.Adam(1e-2, amsgrad=True)


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(count, 12)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int32)


def model(optimizer: Optimizer, plan: Plan, **options: Any) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(100)
    made = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(32, activation="relu", name="layer1", kernel_constraint="max_norm"),
            layers.Dense(32, activation="relu", name="layer2", kernel_constraint="max_norm"),
            layers.Dense(2, name="layer3"),
        ],
        name="net",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return ooodist.distribute(made, order=plan, **options)


def state(made: keras.Model) -> State:
    return [np.array(v.numpy()) for v in (*made.variables, *made.optimizer.variables)]


def assert_same(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def fitted(made: keras.Model, accumulate: int = 1, **options: Any) -> list[Any]:
    """Trains and returns losses of all epochs, and all state after it."""
    x, y = data(STEPS * accumulate * BATCH * engine.size)
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2, **options}
    history = made.fit(x, y, **given).history
    return [*map(np.array, history.values()), *state(made)]


def holds(made: keras.Model) -> bool:
    return made.ooodist.strategy.carrying._held is not None


class Each(keras.callbacks.Callback):
    """Calls a function after each batch."""

    def __init__(self, function: Callable[[keras.Model, int], None], reads: bool) -> None:
        super().__init__()
        self.ooodist_reads_no_weights = not reads
        self._function = function

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._function(self.model, batch)


def at_other_rates(rates: Sequence[float]) -> Each:
    """Sets the learning rate after each batch."""

    def set_rate(made: keras.Model, batch: int) -> None:
        made.optimizer.learning_rate = rates[batch % len(rates)]

    return Each(set_rate, reads=False)


@check
def the_numbers_are_those_of_calls_that_leave_nothing() -> None:
    numbers: list[bool] = []

    def note(made: keras.Model, _batch: int) -> None:
        numbers.append(holds(made))

    for optimizer, steps, accumulate, rates, carried in (
        (momentum, 1, 1, (0.05, 0.01, 0.2), CARRIED),
        (adamw, 1, 1, (), (*KERNELS, *BIASES)),
        (adam, 2, 2, (), KERNELS[:2]),
    ):
        results = []
        for names in ((), carried):
            numbers.clear()
            made = model(optimizer(), plan(names, steps), accumulate=accumulate)
            callbacks = [Each(note, reads=False), *([at_other_rates(rates)] if rates else [])]
            held = data(3 * BATCH * engine.size)
            results.append(fitted(made, accumulate, callbacks=callbacks, validation_data=held))
            assert set(numbers) == {bool(names)}
            assert not holds(made)
            engine.check_equal("weights", b"".join(value.tobytes() for value in state(made)))
            assert int(made.optimizer.iterations) == 2 * STEPS
            exchanged = made.ooodist.strategy.inner.backward.steps[0].exchanges
            left = [each for each in EXCHANGES if each.weights[0] in names]
            if steps == 1:
                others = [each for each in EXCHANGES if each not in left]
                assert [e.name for e in exchanged] == [e.name for e in (*left, *others)]
        assert_same(*results)


if __name__ == "__main__":
    run(engine, sys.argv[1:])
