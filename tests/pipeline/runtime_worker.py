"""A pipeline that trains, against one process: ``mpirun -np 2 python runtime_worker.py MODEL M S``.

After some steps under each of the schedules S ..., the variables of each rank are those of a model
that was trained whole, with the same micro-batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from ooodist.pipeline.boundary import TensorBoundary
from ooodist.pipeline.runtime import Runtime
from ooodist.pipeline.stages import Stage, calls_of, sent_specs, split
from ooodist.pipeline.transport import Transport
from ooodist.pipeline.work import StageWork, compiled_loss
from ooodist.schedule import pipeline
from ooodist.schedule.actions import COMPUTE_KINDS, Schedule, without_transfers
from tests.pipeline.models import MODELS, parts_at

STEPS = 4
SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": pipeline.gpipe,
    "gpipe_2": lambda p, m: pipeline.gpipe(p, m, chunks=2),
    "1f1b": pipeline.one_forward_one_backward,
    "interleaved": pipeline.interleaved,
    "fast_forward": pipeline.fast_forward,
    "modulo": pipeline.modulo,
    "push": pipeline.push,
    "zb_h1": pipeline.zero_bubble_h1,
    "zb_h2": pipeline.zero_bubble_h2,
    "zb_v": pipeline.zero_bubble_v,
}


class Job:
    """A compiled model, and batches for it; the same on all ranks."""

    def __init__(self, name: str, microbatches: int) -> None:
        keras.utils.clear_session()  # the same names each time
        keras.utils.set_random_seed(5)
        self.model, inputs, labels = MODELS[name]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile("sgd", loss)
        self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        self.inputs, self.labels = tf.nest.flatten(inputs), tf.nest.flatten(labels)
        self.microbatches = microbatches

    def batch(self, step: int, microbatch: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Other samples in each: those of the model's example, scaled or moved on."""
        number = 1 + step * self.microbatches + microbatch
        inputs = [
            x * (1 + 0.1 * number) if x.dtype.is_floating else (x + number) % 7 for x in self.inputs
        ]
        return inputs, [(y + number) % 5 for y in self.labels]

    def variables(self) -> list[keras.Variable]:
        return self.model.variables


def train_whole(job: Job) -> list[float]:
    """One process, micro-batch after micro-batch; returns the loss of each step."""
    model, weights = job.model, job.model.trainable_variables

    @tf.function(autograph=False)
    def gradients_of(inputs, labels):
        with tf.GradientTape() as tape:
            outputs = model(inputs if len(inputs) > 1 else inputs[0], training=True)
            y = labels if len(labels) > 1 else labels[0]
            loss = tf.cast(model.compute_loss(y=y, y_pred=outputs), tf.float32)
        seed = tf.constant(1 / job.microbatches)
        return loss, tape.gradient(loss, [w.value for w in weights], output_gradients=seed)

    losses = []
    for step in range(STEPS):
        sums = [tf.zeros(w.shape, w.dtype) for w in weights]
        total = 0.0
        for microbatch in range(job.microbatches):
            loss, gradients = gradients_of(*job.batch(step, microbatch))
            total += float(loss) / job.microbatches
            sums = [s + tf.convert_to_tensor(g) for s, g in zip(sums, gradients, strict=True)]
        job.optimizer.apply(sums, weights)
        losses.append(total)
    return losses


def train_pipeline(job: Job, schedule: Schedule, transport: Transport) -> list[float]:
    """The same on all ranks together; returns what this rank's stages add to each step's loss."""
    model = job.model
    stages = split(model, equal_parts(job, schedule))
    first_inputs, first_labels = job.batch(0, 0)
    specs = sent_specs(model, stages, [tf.TensorSpec.from_tensor(x) for x in first_inputs])
    own = [n for n, rank in enumerate(schedule.rank_of) if rank == transport.rank]
    accumulators: dict[str, tf.Variable] = {}
    works = {n: work_of(n, job, stages, specs, accumulators, first_labels) for n in own}
    runtime = Runtime(schedule, transport, works, [TensorBoundary(each) for each in specs[:-1]])
    weights = unique(w for n in own for w in stages[n].model.trainable_variables)
    job.optimizer.build(weights)
    reads = {
        n: [i for i, s in enumerate(model.inputs) if any(s is r for r in stages[n].reads)]
        for n in own
    }
    losses = []
    for step in range(STEPS):
        batches = [job.batch(step, m) for m in range(job.microbatches)]
        for n, work in works.items():
            work.begin([[x[i] for i in reads[n]] for x, _ in batches], [y for _, y in batches])
        ran = runtime.step()
        done = tuple(each.action for each in ran if each.action.kind in COMPUTE_KINDS)
        assert done == without_transfers(schedule).actions[transport.rank]
        sums = [accumulators[w.path] for w in weights]
        if weights:
            job.optimizer.apply([tf.convert_to_tensor(s) for s in sums], weights)
        for each in sums:
            each.assign(tf.zeros_like(each))
        losses.append(sum(work.mean_loss for work in works.values()))
    return losses


def work_of(
    number: int,
    job: Job,
    stages: list[Stage],
    specs: list[tuple[tf.TensorSpec, ...]],
    accumulators: dict[str, tf.Variable],
    labels: list[tf.Tensor],
) -> StageWork:
    stage, is_last = stages[number], number == len(stages) - 1
    read = [
        tf.TensorSpec.from_tensor(x)
        for x, s in zip(job.batch(0, 0)[0], job.model.inputs, strict=True)
        if any(s is r for r in stage.reads)
    ]
    received = specs[number - 1] if number else ()
    y = labels if len(labels) > 1 else labels[0]
    return StageWork(
        stage,
        read,
        received,
        [tf.TensorSpec.from_tensor(label) for label in labels] if is_last else [],
        compiled_loss(job.model, (y,)) if is_last else None,
        accumulators,
    )


def unique(variables: Iterator[keras.Variable]) -> list[keras.Variable]:
    return list({variable.path: variable for variable in variables}.values())


def main(model_name: str, microbatches: int, names: list[str]) -> None:
    """Trains under each schedule; raises AssertionError where a variable differs."""
    world = MPI.COMM_WORLD
    whole = Job(model_name, microbatches)
    start = [v.numpy() for v in whole.variables()]
    losses = train_whole(whole)
    expected = {v.path: v.numpy() for v in whole.variables()}
    for name in names:
        schedule = SCHEDULES[name](world.size, microbatches)
        transport = Transport(world.Dup(), stall_limit=20)
        job = Job(model_name, microbatches)
        for variable, value in zip(job.variables(), start, strict=True):
            variable.assign(value)
        own_losses = train_pipeline(job, schedule, transport)
        transport.close()
        found = world.allreduce(np.array(own_losses))
        np.testing.assert_allclose(found, losses, rtol=2e-6)
        compared = compare(job, schedule, world.rank, expected)
        print(f"held: {name}, rank {world.rank}, {compared} variables", flush=True)


def equal_parts(job: Job, schedule: Schedule) -> list[range]:
    num_calls = len(calls_of(job.model))
    ends = np.linspace(0, num_calls, schedule.stages + 1).round().astype(int).tolist()
    return parts_at(ends[1:-1], num_calls)


def compare(job: Job, schedule: Schedule, rank: int, expected: dict[str, np.ndarray]) -> int:
    calls = calls_of(job.model)
    own = {
        variable.path: variable
        for owner, part in zip(schedule.rank_of, equal_parts(job, schedule), strict=True)
        if owner == rank
        for number in part
        for variable in getattr(calls[number].layer, "variables", [])
    }
    for path, variable in own.items():
        largest = np.abs(expected[path]).max(initial=0.1)  # keys have a bias of no effect
        difference = np.abs(variable.numpy() - expected[path]).max(initial=0)
        assert difference <= 2e-6 * largest, f"{path}: {difference / largest}"
    return len(own)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
