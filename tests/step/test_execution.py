"""Any number of batches in launches of a fixed size, and fits whose launches grow meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooodist
from ooodist.step.execution import in_executions

pytestmark = pytest.mark.usefixtures("local_engine")

SAMPLES, BATCH = 28, 4  # an epoch of 7 steps


@given(st.lists(st.sampled_from([2, 3])), st.integers(1, 4), st.integers(1, 3))
def test_each_batch_runs_once_and_in_order(sizes: list[int], steps: int, accumulate: int) -> None:
    ran: list[Sequence[Any]] = []

    def launch(batches: Sequence[Any]) -> dict[str, Any]:
        ran.append(batches)
        return {"loss": len(ran)}

    batches = [np.full((size,), number) for number, size in enumerate(sizes)]
    logs = in_executions(launch, steps=steps, accumulate=accumulate)(batches)
    assert logs == ({"loss": len(ran)} if batches else {})
    assert [int(batch[0]) for each in ran for batch in each] == list(range(len(batches)))
    # No launch of another size or of several shapes has to be traced; the end may be ragged.
    for number, each in enumerate(ran):
        if len(each) == steps * accumulate:
            assert accumulate == len(each) or len({len(batch) for batch in each}) == 1
        else:
            assert len(each) == accumulate or number == len(ran) - 1


class Growing(keras.callbacks.Callback):
    """Launches have more steps from the second one on, as when plans are tried."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.seen: list[int] = []
        self.ahead: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)
        self.ahead.append(self.model.ooodist.steps_ahead)
        self.model.ooodist.strategy.steps_per_execution = self._steps


def compiled() -> keras.Model:
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


@pytest.mark.parametrize("accumulate", [1, 2])
def test_launches_that_grow_in_a_fit_train_on_the_same(accumulate: int) -> None:
    samples = SAMPLES * accumulate
    numbers = np.random.default_rng(1)
    x, y = numbers.normal(size=(samples, 3)), numbers.normal(size=(samples, 1))
    results = []
    for steps in (1, 4):
        model = ooodist.distribute(compiled(), accumulate=accumulate)
        notes = Growing(steps)
        model.fit(x, y, BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[notes])
        evaluated = model.evaluate(x, y, BATCH, verbose=0)
        results.append((model.get_weights(), evaluated))
        # Callbacks see each step, and the same numbers of them, whatever a launch has.
        every = [step * accumulate for step in range(1, SAMPLES // BATCH + 1)]
        assert [step + 1 for step in notes.seen] == every * 2
        if steps == 1:
            assert set(notes.ahead) == {0}
        else:  # 1 + 4 + 2 steps, then 4 + 3
            assert notes.ahead == [0, 3, 2, 1, 0, 1, 0, 3, 2, 1, 0, 2, 1, 0]
    (plain, loss), (grown, same) = results
    for one, other in zip(plain, grown, strict=True):
        np.testing.assert_array_equal(one, other)
    assert loss == same


def test_a_single_batch_amid_an_epoch_is_no_part_of_it() -> None:
    x, y = np.ones((SAMPLES, 3)), np.ones((SAMPLES, 1))
    model = ooodist.distribute(compiled())

    class Single(Growing):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            before = int(self.model.optimizer.iterations.numpy())
            self.model.train_on_batch(x[:BATCH], y[:BATCH])
            assert int(self.model.optimizer.iterations.numpy()) == before + 1

    notes = Single(4)
    model.fit(x, y, BATCH, verbose=0, callbacks=[notes])
    assert notes.ahead == [0, 3, 2, 1, 0, 1, 0]
    assert int(model.optimizer.iterations.numpy()) == 2 * SAMPLES // BATCH
