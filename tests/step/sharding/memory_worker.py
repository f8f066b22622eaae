"""One worker of a job that prints what the kernel says of its memory while it trains.

Usage: memory_worker.py all|part   (what each rank keeps of the optimizer's state)
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

import ooodist

engine = ooodist.init()

import keras  # noqa: E402

from ooodist.util.process_memory import resident_bytes  # noqa: E402

WIDTH = 4200  # of two kernels of 71 MB: malloc gives slices of 35 MB back, smaller ones not always


class Look(keras.callbacks.Callback):
    """Notes the least resident memory after a step: what steps leave behind varies."""

    ooodist_reads_no_weights = True
    resident = sys.maxsize

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.resident = min(self.resident, resident_bytes())


def main() -> None:
    made = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH) for _ in "12")])
    made.compile(keras.optimizers.Adam(amsgrad=True), "mse", jit_compile=False)
    ooodist.distribute(made, shard_optimizer=sys.argv[1] == "part")
    ones, look = np.ones((2 * engine.size, WIDTH), np.float32), Look()
    made.fit(ones, ones, batch_size=2, epochs=4, verbose=0, callbacks=[look])
    print(f"resident {look.resident}", flush=True)
    ooodist.shutdown()


if __name__ == "__main__":
    main()
