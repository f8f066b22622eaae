"""One rank of hybrid.py's job: trains two pipelines of two stages, sums at the end and in buckets.

    mpirun -np 4 python hybrid_worker.py
        ANSWER.json TRACES LAYERS WIDTH BATCH SCHEDULE REPEATS STEPS

The ways take turns. Before each turn the stages are measured anew, so that a machine that changes
its speed meets both, and predictions know it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ooodist import engines

answer, folder, schedule = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[6]
layers, width, batch = map(int, sys.argv[3:6])
repeats, steps = map(int, sys.argv[7:9])
engine = engines.init("mpi", timeout=300.0)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import ooodist  # noqa: E402
from ooodist.planner.pipeline import costs  # noqa: E402
from ooodist.report.pipeline.trace import WARM_UP_STEPS, PipelineTrace  # noqa: E402
from ooodist.settings.sections import PlanningConfig  # noqa: E402

MICROBATCHES, TIMEOUT = 8, 300.0
WAYS = {"at the end": 1, "in buckets": costs.MOST_BUCKETS}


def made(most_buckets: int) -> keras.Model:
    """A model whose gradients are summed in at most so many buckets."""
    costs.MOST_BUCKETS = most_buckets
    keras.utils.set_random_seed(1)
    dense = [
        keras.layers.Dense(width, activation="relu", name=f"dense_{number}")
        for number in range(layers)
    ]
    model = keras.Sequential([keras.Input((width,)), *dense])
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
    model = ooodist.pipelined(
        model,
        pipeline=2,
        data=2,
        microbatches=MICROBATCHES,
        schedule=schedule,
        split=(f"dense_{layers // 2}",),
        timeout=TIMEOUT,
        planning=PlanningConfig(trial=False) if schedule == "auto" else None,
    )
    train(model, 1)
    return model


def train(model: keras.Model, number: int, *callbacks: keras.callbacks.Callback) -> None:
    """Trains so many steps."""
    random = np.random.default_rng(model.ooodist.strategy.inner.ranks.replica)
    x = random.normal(size=(number * batch, width)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(batch)
    model.fit(data, verbose=0, shuffle=False, callbacks=list(callbacks))


def turn(way: str, model: keras.Model, repeat: int) -> dict[str, Any]:
    """Measures the stages and trains; what the trace says, on rank 0."""
    assembly = model.ooodist.strategy.inner.assembly
    assembly.carry_out(replace(assembly.plan, costs=assembly.measure()))
    trace = PipelineTrace(folder / way.replace(" ", "_"), steps)
    train(model, WARM_UP_STEPS + steps, trace)
    if engine.rank:
        return {}
    assert trace.comparison is not None
    assert trace.sums is not None
    stages = assembly.plan.costs.stages
    row = {
        "sums": way,
        "repeat": repeat,
        "buckets": "+".join(str(stage.buckets) for stage in stages),
        "weight_gradient": sum(stage.weight_gradient for stage in stages) / len(stages),
        "exchange": sum(stage.exchange for stage in stages) / len(stages),
        "measured": trace.comparison.measured_seconds,
        "predicted": trace.comparison.predicted_seconds,
        "sums_seconds": trace.sums.exchange,
        "hidden": trace.sums.share,
    }
    print(row, flush=True)
    return row


def main() -> None:
    models = {way: made(most) for way, most in WAYS.items()}
    rows = []
    for repeat in range(repeats):
        for way in WAYS if repeat % 2 == 0 else reversed(WAYS):
            rows.append(turn(way, models[way], repeat))
    if engine.rank == 0:
        answer.write_text(json.dumps(rows))
    for model in models.values():
        model.ooodist.strategy.close()


main()
engines.shutdown()
