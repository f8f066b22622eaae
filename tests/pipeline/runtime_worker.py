"""A pipeline that trains, against one process: ``mpirun -np 2 python runtime_worker.py CASE...``.

A case is MODEL:M:S,S...; after 10 steps under each of the schedules S, the variables of each rank
are those of a model that was trained whole, with the same M micro-batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf

from ooodist.engines.communicator import Communicator
from ooodist.pipeline.runtime.boundary import TensorBoundary
from ooodist.pipeline.runtime.runtime import Runtime
from ooodist.pipeline.runtime.transport import Transport
from ooodist.pipeline.runtime.work import StageWork, compiled_loss
from ooodist.pipeline.stages import calls_of, sent_specs, split
from ooodist.planner.pipeline.actions import COMPUTE_KINDS, Schedule, without_transfers
from ooodist.planner.pipeline.costs import equal_stages
from ooodist.planner.pipeline.named.kinds import KINDS
from ooodist.util.patience import Patience
from tests.pipeline.models import MODELS, parts_at

STEPS = 10
TOLERANCE = 1e-6 * STEPS  # sums of floats in another order, in each step


def schedule_of(name: str, ranks: int, microbatches: int) -> Schedule:
    """The schedule of a name; ``gpipe_2`` has two stages a rank."""
    kind = KINDS[name.removesuffix("_2")]
    chunks = 2 if name == "gpipe_2" else kind.chunks
    return kind.make(ranks, microbatches, chunks, equal_stages(ranks * chunks))


class Job:
    """A compiled model, and batches for it; the same on all ranks."""

    def __init__(self, name: str, microbatches: int) -> None:
        keras.utils.clear_session()  # the same names each time
        keras.utils.set_random_seed(5)
        self.model, inputs, labels = MODELS[name]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile("sgd", loss)
        self.inputs, self.labels = tf.nest.flatten(inputs), tf.nest.flatten(labels)
        self.microbatches = microbatches

    def new_optimizer(self) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.01, momentum=0.9)

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

    optimizer = job.new_optimizer()
    losses = []
    for step in range(STEPS):
        sums = [tf.zeros(w.shape, w.dtype) for w in weights]
        total = 0.0
        for microbatch in range(job.microbatches):
            loss, gradients = gradients_of(*job.batch(step, microbatch))
            total += float(loss) / job.microbatches
            sums = [s + tf.convert_to_tensor(g) for s, g in zip(sums, gradients, strict=True)]
        optimizer.apply(sums, weights)
        losses.append(total)
    return losses


class Stages:
    """The stages of a model on this rank; schedules with the same placement share them."""

    def __init__(self, job: Job, rank_of: tuple[int, ...], rank: int) -> None:
        model = job.model
        num_calls = len(calls_of(model))
        self.parts = equal_parts(num_calls, len(rank_of))
        stages = split(model, self.parts)
        first_inputs, labels = job.batch(0, 0)
        specs = sent_specs(model, stages, [tf.TensorSpec.from_tensor(x) for x in first_inputs])
        self.boundaries = [TensorBoundary(each) for each in specs[:-1]]
        self.accumulators: dict[str, tf.Variable] = {}
        self.works: dict[int, StageWork] = {}
        self.reads: dict[int, list[int]] = {}
        for number, stage in enumerate(stages):
            if rank_of[number] != rank:
                continue
            is_last = number == len(stages) - 1
            self.reads[number] = [
                place
                for place, symbol in enumerate(model.inputs)
                if any(symbol is read for read in stage.reads)
            ]
            self.works[number] = StageWork(
                stage,
                [tf.TensorSpec.from_tensor(first_inputs[place]) for place in self.reads[number]],
                specs[number - 1] if number else (),
                [tf.TensorSpec.from_tensor(label) for label in labels] if is_last else [],
                compiled_loss(model, (labels if len(labels) > 1 else labels[0],))
                if is_last
                else None,
                self.accumulators,
            )
        self.weights = unique(
            w for work in self.works.values() for w in work.stage.model.trainable_variables
        )


def train_pipeline(
    job: Job, schedule: Schedule, stages: Stages, transport: Transport
) -> list[float]:
    """The same on all ranks together; returns what this rank's stages add to each step's loss."""
    runtime = Runtime(schedule, transport, stages.works, stages.boundaries)
    optimizer = job.new_optimizer()
    optimizer.build(stages.weights)
    losses = []
    for step in range(STEPS):
        batches = [job.batch(step, m) for m in range(job.microbatches)]
        for number, work in stages.works.items():
            work.begin(
                [[x[place] for place in stages.reads[number]] for x, _ in batches],
                [y for _, y in batches],
            )
        ran = runtime.step()
        done = tuple(each.action for each in ran if each.action.kind in COMPUTE_KINDS)
        assert done == without_transfers(schedule).actions[transport.rank]
        sums = [stages.accumulators[w.path] for w in stages.weights]
        if stages.weights:
            optimizer.apply([tf.convert_to_tensor(each) for each in sums], stages.weights)
        for each in sums:
            each.assign(tf.zeros_like(each))
        losses.append(sum(work.mean_loss for work in stages.works.values()))
    return losses


def unique(variables: Iterable[keras.Variable]) -> list[keras.Variable]:
    return list({variable.path: variable for variable in variables}.values())


def main(model_name: str, microbatches: int, names: list[str]) -> None:
    """Trains under each schedule; raises AssertionError where a variable differs."""
    world = Communicator.of_all()
    job = Job(model_name, microbatches)
    start = [v.numpy() for v in job.variables()]
    losses = train_whole(job)
    expected = {v.path: v.numpy() for v in job.variables()}
    transport = Transport(world.duplicate(), Patience(60))
    placed: dict[tuple[int, ...], Stages] = {}
    for name in names:
        schedule = schedule_of(name, world.size, microbatches)
        if schedule.rank_of not in placed:
            placed[schedule.rank_of] = Stages(job, schedule.rank_of, world.rank)
        stages = placed[schedule.rank_of]
        for variable, value in zip(job.variables(), start, strict=True):
            variable.assign(value)
        own_losses = train_pipeline(job, schedule, stages, transport)
        found = world.all_reduce(np.array(own_losses), "sum")
        np.testing.assert_allclose(found, losses, rtol=TOLERANCE)
        compared = compare(job, stages, schedule, world.rank, expected)
        print(f"held: {model_name}, {name}, rank {world.rank}, {compared} variables", flush=True)
    transport.close()


def equal_parts(num_calls: int, stages: int) -> list[range]:
    ends = np.linspace(0, num_calls, stages + 1).round().astype(int).tolist()
    return parts_at(ends[1:-1], num_calls)


def compare(
    job: Job, stages: Stages, schedule: Schedule, rank: int, expected: dict[str, np.ndarray]
) -> int:
    calls = calls_of(job.model)
    own = {
        variable.path: variable
        for owner, part in zip(schedule.rank_of, stages.parts, strict=True)
        if owner == rank
        for number in part
        for variable in getattr(calls[number].layer, "variables", [])
    }
    for path, variable in own.items():
        largest = np.abs(expected[path]).max(initial=0.1)  # keys have a bias of no effect
        difference = np.abs(variable.numpy() - expected[path]).max(initial=0)
        assert difference <= TOLERANCE * largest, f"{path}: {difference / largest}"
    return len(own)


if __name__ == "__main__":
    for case in sys.argv[1:]:
        model, number, names = case.split(":")
        main(model, int(number), names.split(","))
