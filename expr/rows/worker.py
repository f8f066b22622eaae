"""One worker: times steps whose embedding's gradient travels as rows, or as a table, in turns.

Prints a line of CSV for each turn on rank 0.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ooodist

engine = ooodist.init()

import keras  # noqa: E402

WORDS, WIDTH, BATCH, TOKENS = 50_000, 128, 64, 20
WARM_UP = 3
layers = keras.layers


def make_model(rows: str) -> keras.Model:
    """Returns a classifier of texts whose embedding is 25.6 MB, and the rest 0.3 MB."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((TOKENS,), dtype="int32"),
            layers.Embedding(WORDS, WIDTH),
            layers.Conv1D(256, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(256, activation="relu"),
            layers.Dense(2),
        ],
        name=rows,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    return ooodist.distribute(model, rows=rows)


def main() -> None:
    """Trains both models in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", required=True, help="what the network is called in the CSV")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    numbers = np.random.default_rng(0)
    samples = BATCH * engine.size * options.steps
    x = numbers.integers(0, WORDS, (samples, TOKENS), np.int32)
    y = (x.sum(axis=1) % 2).astype(np.int32)
    models = {rows: make_model(rows) for rows in ("never", "auto")}
    warm = BATCH * engine.size * WARM_UP
    for model in models.values():
        model.fit(x[:warm], y[:warm], batch_size=BATCH, verbose=0)
    for turn in range(options.turns):
        for rows, model in models.items():
            engine.barrier()
            clock = Clock()
            model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[clock])
            if engine.rank == 0:
                step = 1e3 * float(np.median(clock.seconds))
                print(f"csv,{engine.name},{options.network},{rows},{turn},{step:.2f}", flush=True)
    tables = [model.layers[0].embeddings.numpy().tobytes() for model in models.values()]
    if engine.rank == 0:
        print(f"bit-equal: {tables[0] == tables[1]}", flush=True)
    ooodist.shutdown()


class Clock(keras.callbacks.Callback):
    """Notes the seconds of each step."""

    ooodist_reads_no_weights = True

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Begins a step."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Ends a step."""
        self.seconds.append(time.perf_counter() - self._began)


if __name__ == "__main__":
    main()
