"""A pipeline of two ranks registers its model. Usage: pipeline_worker.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ooodist

engine = ooodist.init("mpi")

from ooodist.zoo.zoo import Zoo  # noqa: E402
from tests.zoo.starts import batches, compiled, network  # noqa: E402

folder = Path(sys.argv[1])
zoo = ooodist.Zoo(folder)
model = ooodist.pipelined(compiled(network(blocks=2, seed=3)), pipeline=2, microbatches=2)
x, y = (np.concatenate(each) for each in zip(*batches(4), strict=True))
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
measured = model.evaluate(x, y, batch_size=16, return_dict=True, verbose=0)
added = zoo.register(model, measured, task="classification")
(found,) = zoo.query(model)
assert (found.id, found.meta.metrics) == (added, measured)
engine.check_equal("what was found", str(found))
with ooodist.whole(model):
    if engine.rank == 0:
        with Zoo(folder) as models:
            _, values = models.fetch(added)
        for weight in model.weights:
            if weight.path in values:
                np.testing.assert_array_equal(values[weight.path], weight)
        assert len(values) == 12
print(f"rank {engine.rank} is done", flush=True)
ooodist.shutdown()
