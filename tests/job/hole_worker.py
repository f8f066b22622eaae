"""One worker of test_keras3_hole.py: trains on its own data and prints a checksum of its weights.

Usage: hole_worker.py horovod|ooodist
"""

from __future__ import annotations

import sys
import zlib

import numpy as np

which = sys.argv[1]
if which == "ooodist":
    import ooodist

    ooodist.init("horovod")
import horovod.tensorflow.keras as hvd  # noqa: E402
import keras  # noqa: E402

hvd.init()
keras.utils.set_random_seed(0)  # the same first weights on every rank
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1)
if which == "horovod":
    optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer, "mse", jit_compile=False)
if which == "ooodist":
    ooodist.distribute(model)
x = np.random.default_rng(hvd.rank()).normal(size=(64, 4)).astype(np.float32)
model.fit(x, x[:, :3], verbose=0)
weights = b"".join(weight.numpy().tobytes() for weight in model.trainable_variables)
print(f"rank {hvd.rank()} weights {zlib.crc32(weights)}", flush=True)
hvd.shutdown()
