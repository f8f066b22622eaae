"""A rank of two whose memory ends in a step: ``mpirun -np 2 python memory_worker.py``.

Its kernel limit is set between two steps, so that the next one fits no longer.
"""

from __future__ import annotations

import resource
from pathlib import Path

import keras
import numpy as np

import ooodist
from ooodist import engines
from ooodist.errors import UserError
from ooodist.util.process_memory import resident_bytes

FAILING = 1
SAMPLES, WIDTH = 32, 1 << 21  # activations of 256 MB: malloc gives such memory back at once
LEFT = 64 << 20


class Limiting(keras.callbacks.Callback):
    """Sets a limit on what the process may have, soon after what it has now."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if ooodist.rank() == FAILING:
            lines = Path("/proc/self/status").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
            resource.setrlimit(resource.RLIMIT_DATA, (kib * 1024 + LEFT, resource.RLIM_INFINITY))


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    image = keras.Input((4,))
    x = keras.layers.Dense(4, name="small")(image)
    x = keras.layers.RepeatVector(WIDTH // 4, name="large")(x)
    x = keras.layers.Activation("tanh")(x)
    x = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x))
    model = keras.Model(image, x)
    model.compile("adam", "mse", jit_compile=False)
    return model


def main() -> None:
    engine = engines.init("mpi", timeout=60)
    model = ooodist.pipelined(
        build, pipeline=2, microbatches=1, schedule="1f1b", split=["large"], timeout=5
    )
    strategy = model.ooodist.strategy
    data = np.ones((2 * SAMPLES, 4), np.float32), np.zeros((2 * SAMPLES, 2), np.float32)
    try:
        model.fit(*data, batch_size=SAMPLES, verbose=0, callbacks=[Limiting()])
    except UserError as error:
        print(f"rank {engine.rank}, UserError: {error}", flush=True)
    resident, process = resident_bytes(), strategy.assembly.process_bytes
    assert resident is not None
    assert process is not None
    # Weights are small here: nearly all of what the process has is its own.
    assert 0.5 < process / resident < 1.5, (process, resident)
    engine.barrier()
    strategy.close()
    engines.shutdown()


main()
