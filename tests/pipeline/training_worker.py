"""fit of a pipeline against one process: ``mpirun -np 2 python training_worker.py CASE...``.

Rank 0 first trains the whole model by itself, with TensorFlow alone and the same micro-batches; the
other ranks must have what it has.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.compat.keras_deferred import has_value
from ooodist.errors import UserError
from ooodist.pipeline import assembly, links, planning
from ooodist.pipeline.layers.in_parts import measure_small
from ooodist.planner.pipeline import costs
from ooodist.planner.pipeline.actions import Kind
from ooodist.planner.pipeline.costs import BUCKET_BYTES
from ooodist.step.backward import variable_names
from ooodist.step.optimizer import optimizer_state_of
from tests.listening import listening_sockets
from tests.pipeline.models import CLASSES
from tests.pipeline.swaps import trains_with_swaps_as_without
from tests.pipeline.training_cases import CASES, EPOCHS, STEPS, Batches, Case

EVALUATED = 12  # samples of a batch that is evaluated; the last batches are smaller
SWAPS = "swaps"  # a case of its own: see swaps.py
measured: dict[tuple[object, ...], Any] = {}  # layers, by model
alone_of: dict[tuple[object, ...], Alone] = {}  # what one process trains, by model


def compiled(case: Case, batches: Batches, make_optimizer: Callable[[], Any]) -> keras.Model:
    model, several = batches.model, batches.has_several_outputs
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    number = len(model.outputs)
    model.compile(
        make_optimizer(),
        [loss] * number if several else loss,
        loss_weights=[case.loss_weight] * number,
        metrics=[["accuracy"]] * number if several else ["accuracy"],
    )
    return model


class Alone:
    """One process that trains the whole model, micro-batch after micro-batch; it traces once."""

    def __init__(self, batches: Batches, case: Case, make_optimizer: Callable[[], Any]) -> None:
        self.batches, self.case = batches, case
        model = self.model = compiled(case, batches, make_optimizer)
        self._start = [variable.value + 0 for variable in model.variables]
        weights = model.trainable_variables

        @tf.function(autograph=False)
        def gradients_of(inputs, labels, seed):
            x, y = batches.shaped(inputs, labels)
            weights_of_samples = None
            if case.class_weight is not None:
                table = [case.class_weight.get(number, 1) for number in range(CLASSES)]
                weights_of_samples = tf.gather(tf.constant(table, tf.float32), y)
            with tf.GradientTape() as tape:
                predicted = model(x, training=True)
                loss = model.compute_loss(y=y, y_pred=predicted, sample_weight=weights_of_samples)
                loss = tf.cast(loss, tf.float32)
            return tape.gradient(loss, [w.value for w in weights], output_gradients=seed)

        self._gradients_of = gradients_of

    def begin_again(self, make_optimizer: Callable[[], Any]) -> None:
        """From the first weights, with another optimizer."""
        keras.utils.clear_session()  # the optimizer has the same name each time
        compiled(self.case, self.batches, make_optimizer)
        for variable, value in zip(self.model.variables, self._start, strict=True):
            variable.assign(value)

    def train(self, m: int, epochs: int = EPOCHS) -> None:
        """With so many micro-batches a step."""
        weights, optimizer = self.model.trainable_variables, self.model.optimizer
        optimizer.build(weights)
        for _ in range(epochs):
            for step in range(STEPS):
                scale = 1.0
                if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                    scale = float(optimizer.dynamic_scale.numpy())
                sums = [tf.zeros(w.shape, w.dtype) for w in weights]
                for number in range(step * m, (step + 1) * m):
                    microbatch = self.batches.microbatch(number)
                    gradients = self._gradients_of(*microbatch, tf.constant(scale / m))
                    sums = [
                        s + tf.convert_to_tensor(g) for s, g in zip(sums, gradients, strict=True)
                    ]
                optimizer.apply(sums, weights)
        optimizer.finalize_variable_values(weights)  # as fit does


def train_alone(case: Case) -> Alone:
    key = case.model, case.loss_weight
    if key in alone_of:
        alone_of[key].begin_again(case.optimizer)
    else:
        alone_of[key] = Alone(Batches(case), case, case.optimizer)
    alone_of[key].train(case.microbatches * case.data)
    return alone_of[key]


def measure_once(case: Case) -> None:
    """Has the layers of each model measured by the first case of a job that trains it."""

    def measure(*arguments: Any, **options: Any) -> Any:
        key = case.model, case.microbatches, case.pipeline
        if key not in measured:
            measured[key] = measure_small(*arguments, **options)
        return measured[key]

    planning.measure_small = measure


def main(name: str) -> None:
    case = CASES[name]
    engine = ooodist.init("mpi")
    assert not listening_sockets(os.getpid())  # ranks of one host need no TCP
    alone = train_alone(case) if engine.rank == 0 else None
    expected = alone and alone.model
    measure_once(case)
    assembly.is_direct = lambda _: case.direct
    costs.BUCKET_BYTES = case.bucket_bytes
    links.LEAST_SUM_SECONDS = 0.0  # however short: measure what they take from computing
    batches = Batches(case)
    model = ooodist.pipelined(
        compiled(case, batches, case.optimizer),
        pipeline=case.pipeline,
        data=case.data,
        microbatches=case.microbatches,
        timeout=120,
        **case.options,
    )
    replica, _ = model.ooodist.strategy.shard
    if name.startswith("scaled") and expected is not None:
        assert expected.optimizer.dynamic_scale < 2.0**126
    seen: list[str] = []
    see = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: seen.append(str(logs)))
    history = model.fit(
        batches.data(replica),
        epochs=EPOCHS,
        class_weight=case.class_weight,
        callbacks=[see],
        verbose=0,
    )
    assert len(seen) == EPOCHS * STEPS
    engine.check_equal("the logs of each step", " ".join(seen))
    stages = model.ooodist.strategy.assembly.plan.costs.stages
    assert all((stage.exchange > 0) == (case.data > 1) for stage in stages), stages
    # What they take is none of the time without a sum; a mean over the replicas.
    assert all(0 <= stage.exchange_cpu <= stage.exchange for stage in stages), stages
    if not case.options.get("shard_optimizer"):  # replicas have buckets of their own then
        is_divided = case.bucket_bytes < BUCKET_BYTES
        assert any(stage.buckets > 1 for stage in stages) == is_divided, stages
    if case.data > 1:
        knows_when_sums_ran(model)
    if case.options.get("shard_optimizer"):
        keeps_its_share(model)
    with ooodist.whole(model):
        compare(values_of(expected), values_of(model), case)
    for logs in zip(*history.history.values(), strict=True):
        assert np.isfinite(logs).all(), logs
    shown = " ".join(f"{key} {values[-1]:.6f}" for key, values in history.history.items())
    print(f"history of {name}: {shown};", flush=True)
    if case.evaluates:
        evaluates_as_one_process(case, model, expected, batches.arrays())
    if case.again is not None:
        train_again(case, model, batches, alone)
    model.ooodist.strategy.close()
    print(f"held: {name}, rank {engine.rank}", flush=True)


def knows_when_sums_ran(model: keras.Model) -> None:
    """Each bucket's, on the clock of the actions; those of a stage begin in its last W's."""
    strategy = model.ooodist.strategy
    gradients, ran = strategy.assembly.gradients, strategy.ran
    sums = gradients.exchanges(strategy.assembly.runtime.began)
    assert len(sums) == len(gradients.buckets)
    assert all(each.start < each.end for each in sums), sums
    assert [each.end for each in sums] == sorted(each.end for each in sums)
    for stage in strategy.assembly.works:
        kinds = (Kind.W, Kind.B)
        own = [each for each in ran if each.action.stage == stage and each.action.kind in kinds]
        begins = sorted(each.start for each in sums if each.stage == stage)
        assert begins[0] > own[0].start, (sums, own)
        assert begins[-1] > own[-1].start, (sums, own)
    shared = [b for b in gradients.buckets if any(len(gradients.owners[n]) > 1 for n in b.weights)]
    assert len([each for each in sums if each.start > ran[-1].end]) == len(shared), (sums, ran)


def keeps_its_share(model: keras.Model) -> None:
    """The replicas of a stage have its weights each, and together one copy of their state."""
    strategy = model.ooodist.strategy
    weights, slots = strategy.holding.weights, strategy.holding.optimizer_state
    trained = dict(
        zip(variable_names(model.trainable_variables), model.trainable_variables, strict=True)
    )
    own = {name: weight for name, weight in trained.items() if has_value(weight)}
    state = [(v, name) for v, name in optimizer_state_of(model.optimizer, trained) if name in own]
    assert state
    held = [math.prod(v.shape) for v, _ in state if has_value(v)]
    peers = strategy.ranks.peers
    shares = peers.gather(np.array(sum(held)))
    assert sum(shares) == sum(math.prod(v.shape) for v, _ in state)
    largest = max(math.prod(w.shape) for w in own.values()) * len(state) // len(own)
    assert max(shares) - min(shares) <= largest, shares
    assert all(has_value(v) for v, _ in slots if not len(v.shape))
    costs, schedule = strategy.assembly.plan.costs, strategy.assembly.plan.schedule
    known = sum(
        cost.state_bytes
        for cost, position in zip(costs.stages, schedule.rank_of, strict=True)
        if position == strategy.ranks.position
    )
    others = sum(math.prod(v.shape) for v, _ in weights if has_value(v) and not v.trainable)
    assert known == 4 * (sum(math.prod(v.shape) for v in own.values()) + max(shares) + others)


def evaluates_as_one_process(
    case: Case, model: keras.Model, expected: keras.Model | None, arrays: list[Any]
) -> None:
    """Metrics on all ranks, predictions on rank 0, where a model with the same weights is known."""
    x, y = arrays
    samples = len(tf.nest.flatten(x)[0])
    assert samples % EVALUATED
    options: dict[str, Any] = {"batch_size": EVALUATED, "verbose": 0}
    metrics: dict[str, Any] = {"return_dict": True, **options}
    # Of several losses, Keras 3.15 takes the mean over batches, and not over samples.
    alone = metrics if len(model.outputs) == 1 else metrics | {"batch_size": samples}
    weights: list[Any] = [None]
    if len(model.outputs) == 1 and len(model.outputs[0].shape) == 2:
        weights = [None, np.linspace(0.0, 2.0, samples, dtype=np.float32)]
    for sample_weight in weights:
        found = model.evaluate(x, y, sample_weight=sample_weight, **metrics)
        engines.current().check_equal("the metrics", str(sorted(found.items())))
        if expected is not None:
            close(found, expected.evaluate(x, y, sample_weight=sample_weight, **alone), case)
    found = model.evaluate(x, y, steps=2, **metrics)
    engines.current().check_equal("the metrics", str(sorted(found.items())))
    outputs = model.predict(x, **options)
    if expected is None:
        assert outputs is None
        return
    first = tf.nest.map_structure(lambda a: a[: 2 * EVALUATED * case.data], (x, y))
    close(found, expected.evaluate(*first, **alone), case)
    whole_outputs = expected.predict(x, **options)
    tf.nest.assert_same_structure(outputs, whole_outputs)
    for one, other in zip(*map(tf.nest.flatten, (outputs, whole_outputs)), strict=True):
        np.testing.assert_allclose(
            one.astype(np.float32), other, rtol=0, atol=5 * case.tolerance * np.abs(other).max()
        )
    assert one.dtype == other.dtype


def close(found: dict[str, float], expected: dict[str, float], case: Case) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        limit = max(1e-4, case.tolerance) * abs(value)
        assert abs(found[key] - value) <= limit, (key, found[key], value)


def train_again(case: Case, model: keras.Model, batches: Batches, alone: Alone | None) -> None:
    """Both compiled anew, with another optimizer and loss; the pipeline is given arrays."""
    case = replace(case, loss_weight=0.5)
    expected = None
    if alone is not None:
        again = Alone(alone.batches, case, case.again)
        again.train(case.microbatches, epochs=1)
        expected = again.model
    compiled(case, batches, case.again)
    x, y = batches.arrays()
    size = len(tf.nest.flatten(y)[0]) // STEPS
    history = model.fit(
        x,
        y,
        size,
        shuffle=False,
        class_weight=case.class_weight,
        validation_data=(x, y),
        validation_batch_size=EVALUATED,
        verbose=0,
    )
    samples = len(tf.nest.flatten(x)[0])  # in one batch, as above
    if expected is not None:
        validated = expected.evaluate(x, y, samples, verbose=0, return_dict=True)
        close({key: history.history[f"val_{key}"][-1] for key in validated}, validated, case)
    with ooodist.whole(model):
        compare(*(in_any_optimizer(values_of(each)) for each in (expected, model)), case)
    ends_where_gradients_are_not_finite(model, x, y, size, class_weight=case.class_weight)


def ends_where_gradients_are_not_finite(model: keras.Model, *data: Any, **options: Any) -> None:
    """On all ranks, with the same message, which has the step in which it happens.

    The ranks know one step later, or at the end of the epoch.
    """
    weights = model.get_weights()
    weights[-1] = np.full(weights[-1].shape, np.inf, weights[-1].dtype)
    optimizer = model.optimizer
    for steps_per_epoch, later in ((None, 1), (1, 0)):
        model.set_weights(weights)
        before = int(optimizer.iterations.numpy())
        message = ""
        try:
            model.fit(*data, shuffle=False, verbose=0, steps_per_epoch=steps_per_epoch, **options)
        except UserError as error:
            message = str(error)
        engines.current().check_equal("the message", message)
        assert message.startswith(f"step {before + 1}: the gradient of "), message
        assert " is not finite (loss " in message
        assert int(optimizer.iterations.numpy()) == before + 1 + later


def values_of(model: keras.Model | None) -> dict[tuple[str, str], np.ndarray]:
    """Of a model and its optimizer, by kind and path, which is numbered where several have it."""
    if model is None:
        return {}
    kinds = {"weight": model.variables, "optimizer": model.optimizer.variables}
    return {
        (kind, name): variable.numpy()
        for kind, each in kinds.items()
        for name, variable in zip(variable_names(each), each, strict=True)
    }


def in_any_optimizer(
    values: dict[tuple[str, str], np.ndarray],
) -> dict[tuple[str, str], np.ndarray]:
    """Without the optimizer's name, which has another number where it was made anew."""
    short = {
        (kind, path.partition("/")[2] if kind == "optimizer" else path): value
        for (kind, path), value in values.items()
    }
    assert len(short) == len(values)
    return short


def compare(
    expected: dict[tuple[str, str], np.ndarray],
    found: dict[tuple[str, str], np.ndarray],
    case: Case,
) -> None:
    """On rank 0, with what one process has; on the others, with rank 0."""
    every = b"".join(found[path].tobytes() for path in sorted(found))
    engines.current().check_equal("weights and optimizer state", every)
    if engines.current().rank:
        return
    assert expected.keys() == found.keys(), set(expected) ^ set(found)
    for (kind, path), value in expected.items():
        if "seed_generator" in path or value.size == 0:
            continue
        largest = np.abs(value).max(initial=0.1)
        difference = np.abs(found[kind, path] - value).max(initial=0)
        assert difference <= case.tolerance * largest, f"{path}: {difference / largest}"


def swaps() -> None:
    """As the case "split", with schedules that take turns."""
    engine = ooodist.init("mpi")
    case = CASES["split"]

    def make() -> tuple[keras.Model, tf.data.Dataset]:
        batches = Batches(case)
        return compiled(case, batches, case.optimizer), batches.data(0).repeat()

    options = {"pipeline": 2, "microbatches": case.microbatches, "split": case.options["split"]}
    trains_with_swaps_as_without(make, options)
    print(f"held: swaps, rank {engine.rank}", flush=True)


if __name__ == "__main__":
    for case_name in sys.argv[1:]:
        if case_name == SWAPS:
            swaps()
        else:
            main(case_name)
