"""Two workers that train models which override fit; see test_arguments.py.

Usage: arguments_worker.py all
"""

from __future__ import annotations

import sys
from typing import Any

import ooodist

engine = ooodist.init()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import scipy.sparse  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.trainer.given import overrides  # noqa: E402
from tests.trainer.given.overrides import BATCH, data, made, with_lambda  # noqa: E402
from tests.workers import check, run  # noqa: E402

rank, size = ooodist.rank(), ooodist.size()
X, Y = data(4 * BATCH * size)
HELD = data(20)


def expected(**options: Any) -> tuple[list[np.ndarray], Any]:
    """Weights and history of one process whose batches are those of all ranks."""
    model = made()
    given = {"batch_size": BATCH * size, "shuffle": False, "epochs": 2, "verbose": 0, **options}
    history = model.fit(X, Y, **given).history
    return model.get_weights(), history


def check_trained(model: Any, weights: list[np.ndarray]) -> None:
    assert int(model.optimizer.iterations) == 8  # not twice as many
    for ours, alone in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-5, atol=1e-6)


@check
def overrides_train_on_a_part_each() -> None:
    weights, history = expected(validation_data=HELD)
    usual: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    held = {"validation_data": HELD}
    more = np.concatenate([X, X[:3]]), np.concatenate([Y, Y[:3]])  # not a whole batch
    cases = [
        (made(overrides.Stars, 3 + rank), (X, Y), {**usual, **held, "epochs": 2}),
        (made(overrides.Few, 3 + rank), (X, Y), {**held, "epochs": 2}),
        (made(overrides.OneArgument, 3 + rank), ((X, Y),), {**usual, **held, "rounds": 2}),
        (made(overrides.MakesBatches, 3 + rank), (more,), {"epochs": 2}),
        (with_lambda(), (X, Y), {**usual, **held, "epochs": 2}),
    ]
    for model, args, kwargs in cases:
        ooodist.distribute(model)
        found = model.fit(*args, **kwargs).history
        print(rank, type(model).__name__, flush=True)
        check_trained(model, weights)
        for name in found:
            np.testing.assert_allclose(found[name], history[name], rtol=1e-4)


@check
def what_nobody_can_share_out_is_refused_on_all_ranks() -> None:
    model = ooodist.distribute(made(overrides.BringsItsData))
    with pytest.raises(ooodist.UserError, match=r"fit of BringsItsData makes a \w*Dataset"):
        model.fit()
    model.ooodist.data_is_shared_out = True
    model.fit()
    assert int(model.optimizer.iterations) == 5


@check
def evaluations_of_overrides_cover_all_ranks() -> None:
    alone = made().evaluate(*HELD, return_dict=True, verbose=0)
    for kind in (overrides.Stars, overrides.Collects):
        model = ooodist.distribute(made(kind))
        found = model.evaluate(x=HELD[0], y=HELD[1], return_dict=True, verbose=0)
        for name in alone:
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-5)


def sparse_model(kind: str) -> Any:
    keras.utils.set_random_seed(3)
    numbers = keras.Input((6,), sparse=kind != "dense")
    model = keras.Model(numbers, keras.layers.Dense(1)(numbers))
    model.compile("sgd", "mse", jit_compile=False)
    return model


class Summed(keras.layers.Layer):
    """Embeds ragged numbers, and adds up those of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(7, 3)

    def build(self, shape: Any) -> None:
        self.table.build(shape)

    def call(self, numbers: Any) -> Any:
        dense = numbers.to_tensor() if isinstance(numbers, tf.RaggedTensor) else numbers
        return tf.reduce_sum(self.table(dense), axis=1)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape[0], 3


@check
def sparse_and_ragged_arrays_are_shared_out() -> None:
    dense = np.random.default_rng(1).normal(size=(len(X), 6)).astype("float32")
    dense[dense < 0.8] = 0
    target = dense.sum(axis=1, keepdims=True)
    options: dict[str, Any] = {"shuffle": False, "epochs": 2, "verbose": 0}
    alone = sparse_model("dense")
    alone.fit(dense, target, batch_size=BATCH * size, **options)
    loss = alone.evaluate(dense, target, verbose=0)
    for x in (tf.sparse.from_dense(dense), scipy.sparse.coo_matrix(dense)):
        model = ooodist.distribute(sparse_model("sparse"))
        model.fit(x, target, batch_size=BATCH, **options, validation_data=(x, target))
        check_trained(model, alone.get_weights())
        np.testing.assert_allclose(model.evaluate(x, target, verbose=0), loss, rtol=1e-5)
        model.fit(x, target, batch_size=BATCH, validation_split=0.25, verbose=0)
    row_lengths = np.arange(len(X)) % 5 + 1
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(row_lengths.sum()) % 7, row_lengths)

    def words() -> Any:
        keras.utils.set_random_seed(3)
        numbers = keras.Input((None,), dtype="int64", ragged=True)
        model = keras.Model(numbers, keras.layers.Dense(1)(Summed()(numbers)))
        model.compile("sgd", "mse", jit_compile=False)
        return model

    alone, model = words(), ooodist.distribute(words())
    alone.fit(ragged, target, batch_size=BATCH * size, **options)
    model.fit(ragged, target, batch_size=BATCH, **options)
    check_trained(model, alone.get_weights())


if __name__ == "__main__":
    run(engine, sys.argv[1:])
