"""``ooodist.pipelined`` with ``devices``: mpirun -np 2 python division_worker.py FILE REPLICAS ...

Each file of costs must be followed by the number of replicas that is best with them.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
from mpi4py import MPI

import ooodist
from ooodist import engines
from ooodist.engines.communicator import Communicator
from ooodist.engines.mpi import MpiEngine
from ooodist.errors import UserError
from ooodist.pipeline.links import measure_link
from ooodist.planner.pipeline.layer_costs import Link


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    image = keras.Input((4,), name="image")
    x = keras.layers.Dense(8, name="first")(image)
    model = keras.Model(image, keras.layers.Dense(3, name="second")(x))
    model.compile("sgd", "mean_squared_error")
    return model


def check_link() -> None:
    """Only rank 0, which chooses, knows it."""
    engine = engines.current()
    assert isinstance(engine, MpiEngine)
    link = measure_link(engine.world)
    if engine.rank:
        assert link == Link()
    else:
        assert 0 < link.latency < 0.1
        assert 0 <= link.seconds_per_byte < 1e-7  # 80 Mbit/s, and processes of a host are faster
    assert measure_link(Communicator(MPI.COMM_SELF)) == Link()


def main(arguments: list[str]) -> None:
    ooodist.init("mpi")
    with pytest.raises(UserError, match="devices is 2, but there are no costs"):
        ooodist.pipelined(build, devices=2, microbatches=4)
    check_link()
    x = np.random.default_rng(1).normal(size=(32, 4)).astype(np.float32)
    found = []
    for costs, wanted in zip(arguments[::2], arguments[1::2], strict=True):
        model = ooodist.pipelined(build, devices=2, microbatches=4, schedule="1f1b", costs=costs)
        _, replicas = model.ooodist.strategy.shard
        assert replicas == int(wanted)
        model.fit(x, x[:, :3], batch_size=16 // replicas, shuffle=False, verbose=0)
        with ooodist.whole(model):
            found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    print("as it should be", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
