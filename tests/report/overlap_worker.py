"""One worker of the job in test_overlap_across_steps.py; rank 0 writes a trace.

Usage: overlap_worker.py FOLDER
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np

import ooodist

ooodist.init()

import keras  # noqa: E402

from ooodist.report.data_parallel.trace import Trace  # noqa: E402

STEPS_PER_EXECUTION = 4
BATCH = 4
# The first layer's exchange is short, those of the others are long, and the last one's is the
# longest: it is still under way when the next forward pass could begin.
WIDTHS = (64, 1024, 1024, 3072)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(w, name=f"layer{i}") for i, w in enumerate(WIDTHS, start=1)]
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(3, name="top")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    ooodist.distribute(
        model,
        order="first_k",
        k=len(WIDTHS) + 1,
        steps_per_execution=STEPS_PER_EXECUTION,
        credit=1,
        bucket_bytes=0,
    )
    num_steps = 4 * STEPS_PER_EXECUTION
    x = np.random.default_rng(1).normal(size=(num_steps * BATCH * ooodist.size(), 16))
    y = np.arange(len(x)) % 3
    trace = Trace(Path(sys.argv[1]), 2 * STEPS_PER_EXECUTION)
    model.fit(x.astype(np.float32), y, batch_size=BATCH, verbose=0, callbacks=[trace])
    assert (trace.summary is None) == (ooodist.rank() > 0)
    ooodist.shutdown()


main()
