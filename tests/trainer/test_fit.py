"""What fit asks of a strategy before the first step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.trainer.arrays import batches_per_epoch
from tests.profiler.models import compiled, layers


@pytest.mark.parametrize(
    ("samples", "epochs", "accumulate", "updates"),
    [(64, 3, 1, 24), (64, 3, 2, 12), (64, 1, 4, 2), (60, 2, 1, 16)],
)
def test_a_plan_is_for_updates_not_for_batches(
    monkeypatch: pytest.MonkeyPatch, samples: int, epochs: int, accumulate: int, updates: int
) -> None:
    """Tracing more steps at once must pay off in the updates that are left."""
    given: list[int | None] = []

    def noted(self: DataParallel, batch: Any, total_steps: int | None = None) -> None:
        given.append(total_steps)

    monkeypatch.setattr(DataParallel, "plan", noted)
    monkeypatch.setattr(DataParallel, "needs_plan", property(lambda _: not given))
    ooodist.init("local")
    model = compiled(keras.Sequential([layers.Dense(5)]))
    model = ooodist.distribute(model, accumulate=accumulate)
    x, y = np.zeros((samples, 4), np.float32), np.zeros(samples, np.int32)
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0)
    assert given == [updates]


def test_numbers_of_an_epoch_are_not_kept() -> None:
    """TensorFlow keeps a tensor of each number, of which callbacks may make ever more."""
    made: list[tf.Tensor] = []

    def make(*_: Any) -> None:
        made.append(tf.constant(0.1234567))

    see = keras.callbacks.LambdaCallback(on_epoch_end=make, on_epoch_begin=make)
    ooodist.init("local")
    model = ooodist.distribute(compiled(keras.Sequential([layers.Dense(5)])))
    x, y = np.zeros((8, 4), np.float32), np.zeros(8, np.int32)
    model.fit(x, y, batch_size=8, epochs=2, callbacks=[see], verbose=0)
    begin, end, next_begin, next_end = (
        np.asarray(memoryview(each)).__array_interface__["data"] for each in made
    )
    assert begin == end != next_begin == next_end


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 7


X = np.zeros((60, 4), np.float32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"x": X}, 2),
        ({"x": X, "batch_size": 8}, 8),
        ({"x": [X, X], "batch_size": 8}, 8),
        ({"x": X, "batch_size": 8, "validation_split": 0.2}, 6),
        ({"x": X, "steps_per_epoch": 2}, 2),
        ({"x": tf.data.Dataset.from_tensor_slices(X).batch(10)}, 6),
        ({"x": tf.data.Dataset.from_tensor_slices(X).repeat()}, None),
        ({"x": Batches()}, 7),
        ({"x": iter([X])}, None),
    ],
)
def test_how_many_batches_fit_will_train_on(given: dict[str, Any], expected: int | None) -> None:
    assert batches_per_epoch(given) == expected
    if isinstance(given["x"], np.ndarray):  # Keras agrees
        trained: list[int] = []
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: trained.append(batch)
        )
        model = compiled(keras.Sequential([layers.Dense(5)]))
        model.fit(**given, y=np.zeros(60, np.int32), verbose=0, callbacks=[count])
        assert len(trained) == expected


def test_an_epoch_that_makes_no_update() -> None:
    ooodist.init("local")
    model = compiled(keras.Sequential([layers.Dense(5)]))
    model = ooodist.distribute(model, accumulate=4)
    with pytest.raises(ooodist.UserError, match="accumulate is 4, but an epoch has only 2 batches"):
        model.fit(X, np.zeros(60, np.int32), verbose=0)
