"""One rank of share.py's job: trains a GPT, and looks at its own memory.

mpirun -np 4 python share_worker.py ANSWER.json LAYERS WIDTH STEPS SCHEDULE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from process_memory import status

from ooodist import engines

answer, schedule = Path(sys.argv[1]), sys.argv[5]
layers, width, steps = map(int, sys.argv[2:5])
engine = engines.init("mpi", timeout=600.0)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ooodist  # noqa: E402
from ooodist import models  # noqa: E402
from ooodist.compat.keras_deferred import has_value  # noqa: E402
from ooodist.models.transformers.gpt import GptConfig  # noqa: E402

VOCABULARY, LENGTH, BATCH, MICROBATCHES = 2048, 64, 16, 8
TIMEOUT = 600.0


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    config = GptConfig(
        layers=layers, width=width, heads=width // 64, dropout=0.0, attention_dropout=0.0
    )
    spec = tf.TensorSpec((LENGTH,), tf.int32)
    data = SimpleNamespace(input_spec=spec, task="language", num_classes=VOCABULARY)
    model = models.build(config, data)
    model.compile(
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def main() -> None:
    # What each process has that computes: threads, oneDNN, a traced function.
    tf.function(lambda x: tf.reduce_sum(x @ x))(tf.ones((256, 256))).numpy()
    before = status("VmRSS")
    model = ooodist.pipelined(
        build,
        pipeline=engine.size,
        microbatches=MICROBATCHES,
        schedule=schedule,
        timeout=TIMEOUT,
    )
    words = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH * steps, LENGTH + 1), np.int32)
    data = tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, 1:])).batch(BATCH)
    model.fit(data, verbose=0)
    peak = status("VmHWM") - before
    own = [v for v in (*model.variables, *model.optimizer.variables) if has_value(v)]
    sums = model.ooodist.strategy.assembly.gradients.variables.values()
    sizes = [int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in (*own, *sums)]
    assembly = model.ooodist.strategy.assembly
    of_stages, process = assembly.plan.timeline.peak_bytes[engine.rank], assembly.process_bytes
    facts = np.array([sum(sizes), of_stages, process - before, peak], float)
    gathered = engine.gather(facts).tolist()
    if engine.rank == 0:
        rows = [
            {
                "ranks": engine.size,
                "rank": rank,
                "parameters": model.count_params(),
                "share": share,
                "of_stages": of_stages,
                "process": process,
                "predicted": of_stages + process,
                "measured": measured,
            }
            for rank, (share, of_stages, process, measured) in enumerate(gathered)
        ]
        answer.write_text(json.dumps(rows))
        for row in rows:
            print(row, flush=True)
    model.ooodist.strategy.close()


main()
engines.shutdown()
