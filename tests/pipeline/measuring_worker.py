"""Layers measured by several ranks: ``mpirun -np 2 python measuring_worker.py CASE ...``."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

import ooodist
from ooodist import engines
from ooodist.compat.keras_deferred import has_value, made_without_values, release
from ooodist.errors import UserError
from ooodist.pipeline.layers.in_parts import (
    equal_ranges,
    measure_in_parts,
    measure_in_turns,
    measure_small,
)
from ooodist.pipeline.layers.measure import measure_layers, weight_bytes_by_call
from ooodist.pipeline.stages import calls_of
from ooodist.planner.pipeline.layer_costs import LayerCost

SAME, SMALL, FAILS, TURNS = "same", "small", "fails", "turns"
PARTS, WIDTH = 2, 64
BATCH = np.ones((8, WIDTH), np.float32), np.zeros(8, np.int32)


class Witness(keras.layers.Layer):
    """Notes, where a graph is made, which variables have a value that takes memory."""

    model: keras.Model | None = None
    seen: set[str] = set()  # noqa: RUF012
    fails = False

    def call(self, tensor: tf.Tensor) -> tf.Tensor:
        if Witness.model is not None:
            held = {v.path for v in Witness.model.variables if takes_memory(v)}
            Witness.seen |= held
            if Witness.fails and held and engines.current().rank == 1:
                raise UserError("this layer cannot be measured")
        return tensor + 0.0


def takes_memory(variable: keras.Variable) -> bool:
    return has_value(variable) and not isinstance(variable.value, UninitializedVariable)


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = image = keras.Input((WIDTH,))
    for number in range(2):
        x = Witness(name=f"witness_{number}")(x)
        x = keras.layers.Dense(WIDTH, activation="tanh")(x)
    return keras.Model(image, keras.layers.Dense(4)(keras.layers.Dropout(0.5)(x)))


def compiled(model: keras.Model) -> keras.Model:
    model.compile(
        keras.optimizers.Adam(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def same() -> None:
    """With values, and with pending and released ones: the costs are those of the whole model."""
    engine = engines.current()
    # On rank 0 alone; the other one waits for it.
    expected = measure_layers(compiled(build()), BATCH, 2, steps=1) if engine.rank == 0 else ()
    without = compiled(made_without_values(build))
    for variable in without.variables[::2]:
        release(variable, "nobody")
    whole = compiled(build())
    before = [variable.numpy() for variable in whole.variables]
    for model in (whole, without):
        Witness.model, Witness.seen = model, set()
        costs = measure_in_parts(model, BATCH, 2, engine, PARTS, steps=1)
        Witness.model = None
        assert not model.optimizer.built
        compare(expected, costs)
    check_share(without)
    assert not any(map(has_value, without.variables))
    for variable, value in zip(whole.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def compare(expected: Sequence[LayerCost], costs: Sequence[LayerCost]) -> None:
    """On rank 0; the others have none."""
    for one, other in zip(expected, costs, strict=True):
        assert one.base_bytes == other.base_bytes, (one, other)
        assert one.weight_bytes == other.weight_bytes, (one, other)
        assert one.sent_bytes == other.sent_bytes, (one, other)
        assert (one.weight_gradient > 0) == (other.weight_gradient > 0), (one, other)
        assert (one.update > 0) == (other.update > 0), (one, other)


def check_share(model: keras.Model) -> None:
    """This rank had the values of its part, and no others."""
    rank, calls = engines.current().rank, calls_of(model)
    ranges = equal_ranges(weight_bytes_by_call(model, calls), PARTS)
    share = {v.path for at in ranges[rank] for v in getattr(calls[at].layer, "variables", [])}
    assert Witness.seen == share, (Witness.seen, share)
    assert 0 < len(share) < len(model.variables)


def small() -> None:
    """Rank 0 knows the layers, all know how long one process takes; the model stays as it was."""
    engine, model = engines.current(), compiled(made_without_values(build))
    expected = measure_layers(compiled(build()), BATCH, 2, steps=1) if engine.rank == 0 else ()
    costs, alone = measure_small(model, BATCH, 2, engine, steps=1)
    compare(expected, costs)
    assert alone is not None
    assert 0 < alone < 10
    engine.check_equal("the seconds", str(alone))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ooodist.pipeline.layers.in_parts.SMALL_BYTES", 1)
        assert measure_small(model, BATCH, 2, engine, steps=1)[1] is None  # many activations
    assert not any(map(has_value, model.variables))


def fails() -> None:
    """All ranks learn what one of them cannot measure, and have what they had before."""
    model = compiled(made_without_values(build))
    Witness.model, Witness.fails = model, True
    message = "^rank 1: .*\n.*\n?.*this layer cannot be measured"
    with pytest.raises(UserError, match=message):
        measure_in_parts(model, BATCH, 2, engines.current(), PARTS, steps=1)
    assert not any(map(has_value, model.variables))


def turns() -> None:
    """The first parts are traced at the same time, and no two parts are measured at once."""
    engine, calls = engines.current(), calls_of(build())
    ranges = [range(number, number + 1) for number in range(2 * PARTS)]
    noted: dict[int, dict[str, float]] = {number: {} for number in range(len(ranges))}

    class Held:
        """Stands for a traced part: nothing may keep it when the next one is traced."""

    alive: weakref.WeakSet[Held] = weakref.WeakSet()

    @contextlib.contextmanager
    def traced(number: int) -> Iterator[Callable[[], None]]:
        assert not alive
        held = Held()
        alive.add(held)

        def measure() -> None:
            assert held in alive
            noted[number]["measure"] = time.monotonic()
            time.sleep(0.1)
            noted[number]["measured"] = time.monotonic()

        noted[number]["trace"] = time.monotonic()
        yield measure
        noted[number]["thrown away"] = time.monotonic()

    measure_in_turns(traced, [engine.rank, engine.rank + PARTS], ranges, calls, engine)
    names = ("trace", "measure", "measured", "thrown away")
    table = np.array([[of.get(name, 0.0) for name in names] for of in noted.values()])
    table = engine.all_reduce(table, "sum")  # each part was of one rank
    trace, begin, end, away = table.T
    # Parts 0 and 2 are rank 0's, which comes first; parts 1 and 3 are rank 1's.
    assert max(trace[:PARTS]) < begin[0], table
    turn = [0, 2, 1, 3]
    for one, other in itertools.pairwise(turn):
        assert end[one] < begin[other], table
    # No rank holds two parts.
    assert away[0] < trace[2], table
    assert away[1] < trace[3], table


if __name__ == "__main__":
    ooodist.init("mpi")
    for name in sys.argv[1:]:
        {SAME: same, SMALL: small, FAILS: fails, TURNS: turns}[name]()
        print(f"held: {name}, rank {engines.current().rank}", flush=True)
    engines.shutdown()
