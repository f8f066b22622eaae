"""One worker of run.py's jobs: does what run.py asks for, on all ranks together.

    worker.py JOB.yaml FOLDER BATCH

Command number n is the file FOLDER/n.json, written by run.py; rank 0 writes what came out to
FOLDER/n.answer.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ooodist import engines
from ooodist.config import job as job_file
from ooodist.planner.data_parallel import plan as plans
from ooodist.util import yaml_dataclass

POLL_SECONDS = 0.02
FOR_PLANS = "OOODIST_DATA_PAR_FOR_PLANS"  # set: the engine is set up to follow plans

config = job_file.load(Path(sys.argv[1]), [f"output={sys.argv[2]}/output", f"batch={sys.argv[3]}"])
engine = engines.init(planned=FOR_PLANS in os.environ, timeout=300)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ooodist.job.preparation import set_up  # noqa: E402
from ooodist.profiler.compute import measure_step  # noqa: E402
from ooodist.profiler.network import measure_network  # noqa: E402
from ooodist.profiler.state import preserved  # noqa: E402
from ooodist.profiler.step import trace_step  # noqa: E402
from ooodist.step.backward import OrderedBackward  # noqa: E402
from ooodist.step.carried import Carrying, why_not_carried  # noqa: E402
from ooodist.step.exchange import GradientExchange  # noqa: E402
from ooodist.step.execution import Execution  # noqa: E402
from ooodist.step.sending.wire import ErrorFeedback  # noqa: E402

Batch = Any


class Worker:
    """A model, and ways of training it by name."""

    def __init__(self) -> None:
        self.job = set_up(config, engine)
        self.model = self.job.model
        stream = iter(self.job.data.train)
        self.batches: list[Batch] = [next(stream) for _ in range(8)]
        # Each row: what it launches, with how many batches.
        self.rows: dict[str, tuple[Callable[[Sequence[Batch]], object], int]] = {}

    def compute(self) -> dict[str, Any]:
        """The model's costs; measured by all ranks at the same time, each on its own core.

        The step that was measured, in which nothing is exchanged, becomes the row ``computing``.
        """
        self.traced = trace_step(self.model, self.batches[0])
        costs = measure_step(self.traced)
        self.rows["computing"] = (self.traced.execution, 1)
        return {"costs": yaml_dataclass.plain(costs)}

    def network(self, for_plans: bool) -> dict[str, Any]:
        """What exchanging costs at the present rate, and beside this model's computation."""
        with preserved(self.traced.variables):
            found = measure_network(engine, self.traced.run, for_plans=for_plans)
        return {"network": yaml_dataclass.plain(found)}

    def trace(self, name: str, plan: str | None) -> dict[str, Any]:
        """Traces a way of training, and runs it once. No plan: the engine's own wrapper."""
        began = time.perf_counter()
        if plan is None:
            self.rows[name] = (baseline_step(self.model), 1)
        else:
            made = plans.from_yaml(plan, name)
            exchange = GradientExchange(engine, feedback=ErrorFeedback())
            backward = OrderedBackward(exchange, made)
            # Each row has its own, so what a run leaves waits for the row's next turn.
            carrying = None if why_not_carried(self.model) else Carrying(engine)
            launch = Execution(self.model, backward, carrying=carrying)
            self.rows[name] = (launch, made.steps_per_execution)
        self.run(name, 1)
        return {"seconds": time.perf_counter() - began}

    def run(self, name: str, launches: int) -> dict[str, Any]:
        """Seconds of a step of so many launches, on the rank that takes longest."""
        launch, steps = self.rows[name]
        batches = [self.batches[step % len(self.batches)] for step in range(steps)]
        engine.barrier()
        began = time.perf_counter()
        for _ in range(launches):
            launch(batches)  # on a CPU a call ends when all is done
        seconds = time.perf_counter() - began
        return {"seconds": slowest(seconds / launches / steps)}


def slowest(seconds: float) -> float:
    import numpy as np

    return float(engine.all_reduce(np.array([seconds]), "max")[0])


def baseline_step(model: keras.Model) -> Callable[[Sequence[Batch]], object]:
    """A step as a user of the engine's own gradient tape writes it today."""
    weights = model.trainable_variables
    plain = [weight.value for weight in weights]  # the engines know no Keras variables

    @tf.function(autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        if engine.name == "horovod":
            import horovod.tensorflow as hvd

            tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
        elif engine.name == "byteps":
            import byteps.tensorflow as bps

            gradients = [dense(g) for g in tape.gradient(loss, plain)]
            gradients = [bps.push_pull(g, scope="baseline_") for g in gradients]
            model.optimizer.apply(gradients, weights)
            return loss
        else:  # TensorFlow's own strategy does not train Keras 3 models on several workers
            gradients = tape.gradient(loss, plain)
            names = [weight.path for weight in weights]
            model.optimizer.apply(GradientExchange(engine).mean(gradients, names)[0], weights)
            return loss
        model.optimizer.apply([dense(g) for g in tape.gradient(loss, plain)], weights)
        return loss

    return lambda batches: step(*batches[0])


def dense(gradient: Any) -> tf.Tensor:
    return tf.convert_to_tensor(gradient)


def main() -> None:
    folder = Path(sys.argv[2])
    worker = Worker()
    number = 0
    while True:
        file = folder / f"{number}.json"
        while not file.exists():
            time.sleep(POLL_SECONDS)
        command = json.loads(file.read_text())
        what = command.pop("do")
        if what == "end":
            break
        answer = getattr(worker, what)(**command) if what != "ready" else {}
        engine.barrier()
        if engine.rank == 0:
            incomplete = folder / f"{number}.incomplete"
            incomplete.write_text(json.dumps(answer))
            incomplete.rename(folder / f"{number}.answer.json")
        number += 1
    engines.shutdown()


if __name__ == "__main__":
    main()
