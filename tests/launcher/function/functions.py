"""Functions that test_run.py runs on workers; a program that runs one and is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ooodist


def rank() -> int:
    return int(os.environ["OOODIST_RANK"])


def of_each(factor: int, *, more: int = 0) -> tuple[int, bytes]:
    print(f"this is rank {rank()}", flush=True)
    return factor * rank() + more, b"x" * 100_000


def raises() -> None:
    if rank() == 1:
        raise ValueError("no such file: a.npz")
    time.sleep(600)  # as in an exchange that rank 1 never comes to


def is_killed() -> None:
    if rank() == 1:
        print("about to die", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def ends() -> None:
    if rank() == 1:
        sys.exit()


def returns_a_lock() -> Any:
    return threading.Lock()


def trains() -> tuple[int, list[float]]:
    ooodist.init()
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model = ooodist.distribute(model)
    x = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
    losses: list[float] = model.fit(x, x[:, :1], batch_size=2, verbose=2).history["loss"]
    return ooodist.size(), losses


def waits(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # under nohup it is ignored
    ooodist.run(waits, sys.argv[1:], np=2)
