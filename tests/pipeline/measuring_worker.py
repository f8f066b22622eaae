"""Layers measured by several ranks: ``mpirun -np 3 python measuring_worker.py CASE ...``.

Two of the ranks measure; the third one is of another pipeline.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.compat.keras_deferred import has_value, made_without_values, release
from ooodist.errors import UserError
from ooodist.pipeline.layers.in_parts import equal_ranges, measure_in_parts
from ooodist.pipeline.layers.measure import held_by_calls, measure_layers
from ooodist.pipeline.stages import calls_of

SAME, FAILS = "same", "fails"
PARTS, WIDTH = 2, 64
BATCH = np.ones((8, WIDTH), np.float32), np.zeros(8, np.int32)


class Witness(keras.layers.Layer):
    """Notes, where a graph is made, which variables have a value that takes memory."""

    model: keras.Model | None = None
    seen: set[str] = set()  # noqa: RUF012
    fails = False

    def call(self, tensor: tf.Tensor) -> tf.Tensor:
        if Witness.model is not None:
            held = {v.path for v in Witness.model.variables if isinstance(v._value, tf.Variable)}
            sized = {p for p in held if not type(value_of(p)).__name__.startswith("Uninit")}
            Witness.seen |= sized
            if Witness.fails and engines.current().rank == 1 and sized:
                raise UserError("this layer cannot be measured")
        return tensor + 0.0


def value_of(path: str) -> object:
    assert Witness.model is not None
    return next(v._value for v in Witness.model.variables if v.path == path)


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = image = keras.Input((WIDTH,))
    for _ in range(4):
        x = Witness()(keras.layers.Dense(WIDTH, activation="tanh")(x))
    return keras.Model(image, keras.layers.Dense(4)(keras.layers.Dropout(0.5)(x)))


def compiled(model: keras.Model) -> keras.Model:
    model.compile(
        keras.optimizers.Adam(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def same() -> None:
    """With values, without, and with released ones: the costs are those of the whole model."""
    engine = engines.current()
    expected = measure_layers(compiled(build()), BATCH, 2, steps=1)
    pending = compiled(made_without_values(build))
    released = compiled(made_without_values(build))
    for variable in released.variables:
        release(variable, "nobody")
    whole = compiled(build())
    before = [variable.numpy() for variable in whole.variables]
    for model in (whole, pending, released):
        Witness.model, Witness.seen = model, set()
        costs = measure_in_parts(model, BATCH, 2, engine, PARTS, steps=1)
        Witness.model = None
        if model is not whole:
            check_share(model)
            assert not any(map(has_value, model.variables))
        assert not model.optimizer.built
        assert len(costs) == (len(expected) if engine.rank == 0 else 0)
        for one, other in zip(expected, costs, strict=False):
            assert one.base_bytes == other.base_bytes, (one, other)
            assert one.weight_bytes == other.weight_bytes, (one, other)
            assert one.sent_bytes == other.sent_bytes, (one, other)
            assert (one.weight_gradient > 0) == (other.weight_gradient > 0), (one, other)
            assert (one.update > 0) == (other.update > 0), (one, other)
    for variable, value in zip(whole.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def check_share(model: keras.Model) -> None:
    """This rank had the values of its part, and no others."""
    rank, calls = engines.current().rank, calls_of(model)
    ranges = equal_ranges(held_by_calls(model, calls), PARTS)
    own = ranges[rank] if rank < PARTS else range(0)
    share = {v.path for at in own for v in getattr(calls[at].layer, "variables", [])}
    assert Witness.seen == share, (Witness.seen, share)
    assert len(share) < len(model.variables)


def fails() -> None:
    """All ranks learn what one of them cannot measure, and have what they had before."""
    model = compiled(made_without_values(build))
    Witness.model, Witness.fails = model, True
    message = "^rank 1: .*\n.*\n?.*this layer cannot be measured"
    with pytest.raises(UserError, match=message):
        measure_in_parts(model, BATCH, 2, engines.current(), PARTS, steps=1)
    assert not any(map(has_value, model.variables))


if __name__ == "__main__":
    ooodist.init("mpi")
    for name in sys.argv[1:]:
        {SAME: same, FAILS: fails}[name]()
        print(f"held: {name}, rank {engines.current().rank}", flush=True)
    engines.shutdown()
