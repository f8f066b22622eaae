"""One rank of memory.py's job: what a step keeps in memory, measured and predicted.

    mpirun -np 2 python memory_worker.py ANSWER.json SCHEDULE SAMPLES WIDTH MICROBATCHES ...

Micro-batches have the same size whatever their number. The model has many layers with activations
of the same size, so that what an action needs for itself is little beside what is kept.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from process_memory import status

from ooodist import engines
from ooodist.compat.keras_model import build_with
from ooodist.settings.sections import ParallelConfig
from ooodist.util.patience import Patience

LAYERS = 32
INPUTS = 8
TIMEOUT = 300.0

answer, schedule = Path(sys.argv[1]), sys.argv[2]
samples_each, width, *numbers = map(int, sys.argv[3:])
engine = engines.init("mpi", timeout=TIMEOUT)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from ooodist.pipeline.assembly import assemble  # noqa: E402
from ooodist.pipeline.ranks import make_ranks  # noqa: E402


def made() -> keras.Model:
    x = image = keras.Input((INPUTS,))  # few: the batch is on rank 0 whatever the schedule
    for _ in range(LAYERS):
        x = keras.layers.Dense(width, activation="relu")(x)
    return keras.Model(image, keras.layers.Dense(8)(x))


def measure(microbatches: int) -> list[dict[str, float]]:
    """Of each rank."""
    keras.utils.set_random_seed(1)
    model = made()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    samples = samples_each * microbatches
    batch = np.ones((samples, INPUTS), np.float32), np.zeros(samples, np.int32)
    build_with(model, batch)
    half = LAYERS // 2
    parallel = ParallelConfig(
        pipeline=engine.size,
        microbatches=microbatches,
        schedule=schedule,
        split=tuple(model.layers[1 + half * n].name for n in range(1, engine.size)),
    )
    ranks = make_ranks(engine.world, engine.size, 1)
    assembly = assemble(model, batch, parallel, ranks, engine, Patience(TIMEOUT))
    peaks = []
    for _ in range(6):
        engine.barrier()
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the most so far
        assembly.step(batch)
        peaks.append(status("VmHWM") - before)
    timeline, schedule_of = assembly.plan.timeline, assembly.plan.schedule
    # Weights, their optimizer state and summed gradients are there before the step.
    base = sum(each.nbytes for each in (v.numpy() for v in assembly.gradients.variables.values()))
    stages = zip(schedule_of.rank_of, assembly.plan.costs.stages, strict=True)
    base += sum(cost.state_bytes for rank, cost in stages if rank == engine.rank)
    own = np.array([statistics.median(peaks[1:]), timeline.peak_bytes[engine.rank] - base], float)
    assembly.transport.close()
    return [
        {"rank": rank, "microbatches": microbatches, "measured": row[0], "predicted": row[1]}
        for rank, row in enumerate(engine.gather(own).tolist())
    ]


found = [row for number in numbers for row in measure(number)]
if engine.rank == 0:
    answer.write_text(json.dumps(found))
    for row in found:
        print(row, flush=True)
engines.shutdown()
