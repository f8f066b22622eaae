"""Run on every rank by test_train.py: jobs that fail, one after the other, on one engine.

Prints for each a line ``WRONG name: message``. The last is printed only if all ranks still talk
to each other, so each failure was agreed on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ooodist import engines
from ooodist.config import job as job_file
from ooodist.errors import UserError
from ooodist.job.preparation import set_up
from ooodist.job.run import train

FOLDER = Path(sys.argv[1])

SMALL = ["model={name: mlp, layers: [4]}", "epochs=1", "report.tensorboard=false"]
JOBS = {
    "no data": ["data={name: npz, path: nowhere.npz}"],
    "empty data": [f"data={{name: npz, path: {FOLDER}/empty.npz}}"],
    "unreadable data": [f"data={{name: npz, path: {FOLDER}/unreadable.npz}}"],
    "batch too large": ["batch=1000"],
    "model unlike data": ["model=gpt"],
    "order": ["order={name: first_k, k: 99}"],
    "unwritable output": ["output=/dev/null/runs"],
    "truncated checkpoint": [f"checkpoint.resume={FOLDER}/truncated.keras"],
    "nothing to resume": ["checkpoint.resume=true"],
    "one rank has another job": [f"seed={engines.init().rank}"],
    "loss unlike labels": ["loss=categorical_crossentropy"],
    "metric unlike labels": ["metrics=[f1_score]"],
    "one rank cannot build": ["model=tests.wrong_jobs:fails_on_rank_1"],
    "loss is no number": ["optimizer.learning_rate=1e30"],
}


def fails_on_rank_1() -> keras.Model:
    """A model function of a user, with a mistake that shows on one rank only."""
    if engines.current().rank == 1:
        raise RuntimeError("no luck")
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])


def breaks_on_rank_1() -> tf.data.Dataset:
    """A data function of a user, with a sample that cannot be read on one rank."""

    def samples() -> Iterator[tuple[np.ndarray, int]]:
        for number in range(400):
            if number == 333 and engines.current().rank == 1:
                raise ValueError(f"sample {number} is broken")
            yield np.full(8, number, "f"), number % 3

    spec = tf.TensorSpec(8, tf.float32), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(samples, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(400))


def differs_by_rank() -> tf.data.Dataset:
    """A data function of a user that finds more samples on one rank."""
    number = 64 + 8 * engines.current().rank
    return tf.data.Dataset.from_tensor_slices((np.zeros([number, 4], "f"), np.arange(number) % 2))


def main() -> None:
    engine = engines.init()
    if engine.rank == 0:
        np.savez(FOLDER / "empty.npz", x=np.zeros((0, 3), "f"), y=np.zeros((0,), "i"))
        (FOLDER / "unreadable.npz").write_bytes(b"no zip")
        (FOLDER / "truncated.keras").write_bytes(b"PK\3\4")
    engine.barrier()
    for name, overrides in JOBS.items():
        output = f"output={FOLDER}/{name.replace(' ', '-')}"
        try:
            config = job_file.load(None, [*SMALL, output, *overrides])
            train(set_up(config, engine), time.monotonic())
        except UserError as error:
            print(f"WRONG {name}: {error}", flush=True)
    engines.shutdown()
    print("END", flush=True)


if __name__ == "__main__":
    main()
