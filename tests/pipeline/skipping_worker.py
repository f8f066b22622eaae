"""Steps that are left out in a pipeline: ``mpirun -np 2 python skipping_worker.py CASE...``."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist import engines
from ooodist.errors import UserError
from ooodist.step.finiteness import finite
from tests.pipeline.holding_worker import SECOND_SPLIT

BATCH, STEPS = 8, 6
CASES: dict[str, dict[str, Any]] = {
    "two_stages": {"pipeline": 2, "schedule": "zb_h1", "split": SECOND_SPLIT},
    "sharded_replicas": {"pipeline": 1, "data": 2, "shard_optimizer": True},
}


def build() -> keras.Model:
    keras.utils.set_random_seed(4)
    inputs = keras.Input((5,))
    hidden = inputs
    for number in range(4):
        hidden = keras.layers.Dense(6, activation="tanh", name=f"dense_{number}")(hidden)
        hidden = keras.layers.BatchNormalization(name=f"norm_{number}")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3, name="head")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), loss, metrics=["accuracy"])
    return model


def trained(options: dict[str, Any], *data: np.ndarray) -> tuple[keras.Model, list[np.ndarray]]:
    """Returns the model, and all that a step that is left out must not change."""
    model = ooodist.pipelined(build, microbatches=2, on_nan="skip", timeout=120, **options)
    history = model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0).history
    with ooodist.whole(model):
        state = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    return model, [*state, *(np.array(values) for values in history.values())]


def main(name: str) -> None:
    options = CASES[name]
    engine = engines.current()
    step = BATCH * options.get("data", 1)
    numbers = np.random.default_rng(1)
    x = numbers.normal(size=(STEPS * step, 5)).astype(np.float32)
    y = numbers.integers(0, 3, STEPS * step)
    bad = x.copy()
    bad[2 * step + step // 2] = np.nan  # in the third step, of one replica
    model, found = trained(options, bad, y)
    assert model.ooodist.strategy.watch.num_skipped == 1
    model.ooodist.strategy.close()
    left_out = range(2 * step, 3 * step)
    keras.utils.clear_session()
    model, expected = trained(options, *(np.delete(each, left_out, axis=0) for each in (x, y)))
    assert model.ooodist.strategy.watch.num_skipped == 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    finite.MOST_IN_A_ROW = 2
    message = ""
    try:
        model.fit(np.full_like(x, np.inf), y, batch_size=BATCH, verbose=0)
    except UserError as error:
        message = str(error)
    engine.check_equal("the message", message)
    assert "and the 1 before it were left out" in message, message
    model.ooodist.strategy.close()
    with pytest.raises(UserError, match="on_nan is skip, but elastic"):
        ooodist.pipelined(build, microbatches=2, on_nan="skip", elastic={"rho": 0.5}, **options)
    print(f"held: {name}, rank {engine.rank}", flush=True)


if __name__ == "__main__":
    ooodist.init("mpi")
    for case in sys.argv[1:]:
        main(case)
