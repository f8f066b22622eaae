"""One worker of the jobs in test_rows.py: gradients that travel as rows, on all ranks.

Usage: rows_worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

import numpy as np

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ooodist.planner.data_parallel.plan import Plan, PlannedExchange  # noqa: E402
from ooodist.step.exchange import Exchanged  # noqa: E402
from tests.workers import check, run  # noqa: E402

layers = keras.layers
WORDS, WIDTH, TOKENS, BATCH, STEPS = 600, 8, 6, 4, 5
TABLE = "net/table/embeddings"
KERNEL, BIAS = "net/top/kernel", "net/top/bias"
PACKED_BYTES = BATCH * TOKENS * (WIDTH + 1) * 4


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Few words are used, so that ranks share rows, and each has some several times."""
    numbers = np.random.default_rng(7)
    x = numbers.choice([0, 1, 5, 17, 80, WORDS - 1, -3], size=(count, TOKENS)).astype(np.int32)
    return x, (x.sum(axis=1) % 2).astype(np.int32)


def model(optimizer: str = "adam", **options: Any) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(50 + engine.rank)
    made = keras.Sequential(
        [
            keras.Input((TOKENS,), dtype="int32"),
            layers.Embedding(WORDS, WIDTH, name="table"),
            layers.Flatten(),
            layers.Dense(2, name="top"),
        ],
        name="net",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, jit_compile=False)
    return ooodist.distribute(made, **options)


def plan(**changes: Any) -> Plan:
    """The table first, alone."""
    exchanges = (PlannedExchange((TABLE,)), PlannedExchange((KERNEL, BIAS)))
    return replace(Plan("rows", None, exchanges, credit=1), **changes)


def state(made: keras.Model) -> list[np.ndarray]:
    variables = [*made.weights, *made.optimizer.variables]
    return [np.array(variable.numpy()) for variable in variables]


def fitted(made: keras.Model) -> list[np.ndarray]:
    """Trains, and returns the losses of all epochs and all state after it."""
    x, y = data(STEPS * BATCH * engine.size)
    history = made.fit(x, y, batch_size=BATCH, epochs=3, verbose=0).history
    return [*map(np.array, history.values()), *state(made)]


def exchanged(made: keras.Model) -> Exchanged:
    """The exchange of the table in the step that was traced last."""
    step = made.ooodist.strategy.backward.steps[-1]
    (found,) = (each for each in step.exchanges if TABLE in each.weights)
    return found


def travels_as_rows(made: keras.Model) -> bool:
    found = exchanged(made)
    as_rows = found.num_bytes == PACKED_BYTES
    assert as_rows or found.num_bytes >= WORDS * WIDTH * 4
    assert as_rows == ("gather" in found.op.type.lower())
    return as_rows


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.tobytes() == other.tobytes()  # zeros have the same signs, too


@check
def the_numbers_are_those_of_tables() -> None:
    """Of Adam, which divides by the root of a mean square: a bit more would show."""
    alike_with_each = ({"order": plan()},)
    for options in (
        {"steps_per_execution": 2},
        *(alike_with_each if engine.name == "collective" else ()),
    ):
        tables = model(rows="never", **options)
        expected = fitted(tables)
        assert not travels_as_rows(tables)
        rows = model(**options)
        found = fitted(rows)
        assert travels_as_rows(rows)
        assert_same(found, expected)


@check
def nothing_travels_as_rows_in_a_bucket_or_into_the_next_call() -> None:
    bucket = (PlannedExchange((TABLE, KERNEL)), PlannedExchange((BIAS,)))
    carried = (PlannedExchange((TABLE,), carried=True), PlannedExchange((KERNEL, BIAS)))
    for exchanges in (bucket, carried):
        made = model(order=plan(exchanges=exchanges))
        fitted(made)
        step = made.ooodist.strategy.backward.steps[-1]
        assert not any("gather" in each.op.type.lower() for each in step.exchanges)


@check
def what_batches_of_other_shapes_need_is_traced_anew() -> None:
    """Ranks may see other shapes than each other, so nothing may depend on these."""
    made = model("sgd")
    fitted(made)
    assert travels_as_rows(made)
    x, y = data(11)
    unlike = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH - engine.rank).take(3)
    made.fit(unlike, verbose=0)
    assert not travels_as_rows(made)
    fitted(made)
    assert travels_as_rows(made)
    made.train_on_batch(*data(BATCH + engine.rank))
    assert not travels_as_rows(made)
    engine.check_equal("the table", made.layers[0].embeddings.numpy().tobytes())


class Tied(layers.Layer):
    """Multiplies by the transposed table of another layer."""

    def __init__(self, table: keras.layers.Embedding) -> None:
        super().__init__()
        self.table = table

    def call(self, inputs: Any) -> Any:
        return keras.ops.matmul(inputs, keras.ops.transpose(self.table.embeddings))


def used_twice(tied: bool, **options: Any) -> keras.Model:
    """Its table is looked up in twice, or is the output layer's kernel as well."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    tokens = keras.Input((TOKENS,), dtype="int32")
    table = layers.Embedding(WORDS, WIDTH)
    if tied:
        out = Tied(table)(layers.GlobalAveragePooling1D()(table(tokens)))
    else:
        both = layers.Concatenate()([table(tokens), table(tokens - 2)])
        out = layers.Dense(2)(layers.Flatten()(both))
    made = keras.Model(tokens, out)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile("adam", loss, jit_compile=False)
    return ooodist.distribute(made, **options)


@check
def a_table_that_is_used_twice_has_the_rows_of_both_or_is_dense() -> None:
    for tied in (False, True):
        made = used_twice(tied)
        found = fitted(made)
        step = made.ooodist.strategy.backward.steps[-1]
        gathered = [e.num_bytes for e in step.exchanges if "gather" in e.op.type.lower()]
        assert gathered == ([] if tied else [2 * PACKED_BYTES])
        if gathered:  # else it is the step of a table anyway
            assert_same(found, fitted(used_twice(tied, rows="never")))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(engine, sys.argv[1:])
