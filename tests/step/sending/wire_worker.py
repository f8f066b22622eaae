"""One worker of the jobs in test_wire.py: gradients in 16 bits, on all ranks.

Usage: wire_worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ooodist.checkpoint import folder as folders  # noqa: E402
from ooodist.checkpoint.archive import KerasFile  # noqa: E402
from ooodist.config import job as job_file  # noqa: E402
from ooodist.job.preparation import set_up  # noqa: E402
from ooodist.job.run import train  # noqa: E402
from ooodist.planner.data_parallel.plan import (  # noqa: E402
    InLowRank,
    Plan,
    PlannedExchange,
)
from ooodist.settings.sections import PlanningConfig  # noqa: E402
from ooodist.step.exchange import GradientExchange  # noqa: E402
from ooodist.step.sending.wire import ErrorFeedback  # noqa: E402
from tests.workers import check, run  # noqa: E402

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SHAPES = {"a": (40, 50), "b": (7,), "c": (3, 2, 5)}
BATCH, STEPS = 4, 4
KERNELS = tuple(f"net/layer{number}/kernel" for number in (1, 2, 3))
BIASES = tuple(f"net/layer{number}/bias" for number in (1, 2, 3))
State = list[np.ndarray]


def gradients_of(rank: int, step: int) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng([rank, step])
    return {
        name: (numbers.normal(size=shape) * 10.0 ** numbers.integers(-7, 2, shape)).astype("f4")
        for name, shape in SHAPES.items()
    }


def expected(wire: str, narrow: set[str], step: int, residuals: dict[Any, Any]) -> dict[str, Any]:
    """The means of two ranks, computed by NumPy."""
    means = {}
    for name in SHAPES:
        both = [gradients_of(rank, step)[name] for rank in range(engine.size)]
        if name not in narrow:
            means[name] = (both[0] + both[1]) / np.float32(2)
            continue
        sent = []
        for rank, gradient in enumerate(both):
            wanted = gradient / np.float32(2) + residuals.get((rank, name), np.float32(0))
            sent.append(wanted.astype(NUMPY[wire]))
            residuals[rank, name] = wanted - sent[-1].astype(np.float32)
        means[name] = (sent[0] + sent[1]).astype(np.float32)
    return means


def narrow_plan(wire: str) -> Plan:
    exchanges = (
        PlannedExchange(("a",), 0, 3),
        PlannedExchange(("c",)),
        PlannedExchange(("a",), 1, 3),
        PlannedExchange(("b",)),
        PlannedExchange(("a",), 2, 3),
    )
    made = Plan("narrow", None, exchanges, credit=2, wire=wire, narrow=("a", "b"))
    return replace(made, by_urgency=engine.name == "byteps")


@check
def means_are_those_of_rounded_gradients() -> None:
    """In buckets, chunks and alone, with a wire for all and for some, bit for bit."""
    for wire in engine.wires:
        for options, narrow in (
            ({"wire": wire}, set(SHAPES)),
            ({"plan": narrow_plan(wire)}, {"a", "b"}),
        ):
            exchange = GradientExchange(engine, feedback=ErrorFeedback(), **options)
            residuals: dict[Any, Any] = {}
            records = []

            @tf.function
            def mean(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
                found, exchanged = exchange.mean(gradients, list(SHAPES))  # noqa: B023
                records[:] = exchanged  # noqa: B023
                return found

            for step in range(4):
                own = [tf.constant(value) for value in gradients_of(engine.rank, step).values()]
                means = mean(own)
                wanted = expected(wire, narrow, step, residuals)
                for name, ours in zip(SHAPES, means, strict=True):
                    np.testing.assert_array_equal(ours.numpy(), wanted[name], f"{wire} {name}")
            for name in narrow:
                kept = exchange.feedback.values()[name]
                np.testing.assert_array_equal(kept, residuals[engine.rank, name])
            sizes = {name: int(np.prod(shape)) for name, shape in SHAPES.items()}
            num_bytes = sum(sizes[name] * (2 if name in narrow else 4) for name in SHAPES)
            assert sum(record.num_bytes for record in records) == num_bytes
    for wire in {"float16", "bfloat16"} - {*engine.wires}:
        with pytest.raises(ooodist.UserError, match=f"{wire}, which engine {engine.name} cannot"):
            GradientExchange(engine, wire=wire)


def model(optimizer: Any, precision: str = "float32", **options: Any) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(100)
    keras.config.set_dtype_policy(precision)
    made = keras.Sequential(
        [
            keras.Input((24,)),
            keras.layers.Dense(64, activation="relu", name="layer1"),
            keras.layers.Dense(64, activation="relu", name="layer2"),
            keras.layers.Dense(2, name="layer3"),
        ],
        name="net",
    )
    keras.config.set_dtype_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, jit_compile=False)
    return ooodist.distribute(made, **options)


def trained(made: keras.Model, accumulate: int = 1, **options: Any) -> State:
    """Trains, and returns all state; the ranks must have the same."""
    count = STEPS * accumulate * BATCH * engine.size
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(count, 24)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2, **options}
    losses = made.fit(x, y, **given).history["loss"]
    assert losses[1] != losses[0]
    state = [np.array(v.numpy()) for v in [*made.weights, *made.optimizer.variables]]
    engine.check_equal("weights", b"".join(value.tobytes() for value in state))
    return state


def plan(carries: bool, wire: str) -> Plan:
    """All but one of the exchanges are narrow, and some are carried if it ``carries`` any."""
    exchanges = (
        PlannedExchange((KERNELS[2],)),
        PlannedExchange((KERNELS[0],), 0, 2, carries),
        PlannedExchange((KERNELS[0],), 1, 2),
        PlannedExchange(BIASES, carried=carries),
        PlannedExchange((KERNELS[1],), carried=carries),
    )
    narrow = (*BIASES, KERNELS[0], KERNELS[1])
    by_urgency = engine.name == "byteps"
    return Plan("narrow", None, exchanges, 2, by_urgency, wire=wire, narrow=narrow)


def assert_same(ours: State, theirs: State) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@check
def ranks_end_alike() -> None:
    options = {"order": "first_k", "k": 2, "accumulate": 2, "steps_per_execution": 2}
    trained(model("adam", wire=engine.wires[-1], **options), accumulate=2)


@check
def so_they_do_with_scaled_losses_and_other_dtypes() -> None:
    wire = "bfloat16"
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**19)
    narrow, exact = trained(model("adam", wire=wire)), trained(model("adam"))
    differences = [np.abs(a - b).max() for a, b in zip(narrow, exact, strict=True)]
    assert 0 < max(differences) < 0.05
    for optimizer, precision, feedback in (
        (scaling, "mixed_float16", True),
        ("sgd", "bfloat16", False),
    ):
        state = trained(model(optimizer, precision, wire=wire, error_feedback=feedback))
        assert all(np.isfinite(value.astype(np.float64)).all() for value in state)
    # The scale came down from where gradients overflow: no infinity was hidden.
    assert float(scaling.dynamic_scale) < 2.0**19
    assert 0 < int(scaling.iterations) < 2 * STEPS


@check
def carried_exchanges_send_the_same() -> None:
    alone, outliving = (
        trained(model("adam", order=plan(carries, "float16"))) for carries in (False, True)
    )
    assert_same(alone, outliving)


@check
def embeddings_travel_too() -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    made = keras.Sequential(
        [keras.Input((5,)), keras.layers.Embedding(30, 8), keras.layers.Flatten()]
    )
    made.add(keras.layers.Dense(2))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile("adam", loss, jit_compile=False)
    ooodist.distribute(made, wire="float16")
    x = np.random.default_rng(engine.rank).integers(0, 30, (32, 5))
    made.fit(x, (x[:, 0] > 15).astype(int), batch_size=8, epochs=1, verbose=0)
    weights = made.get_weights()
    engine.check_equal("weights", b"".join(value.tobytes() for value in weights))
    assert "embedding/embeddings" in " ".join(made.ooodist.strategy.rank_state.values("residual"))


def job(output: Path, *overrides: str, resume: bool = False) -> keras.Model:
    keras.backend.clear_session()
    given = [
        "model={name: mlp, layers: [16]}",
        "steps_per_epoch=4",
        "report={tensorboard: false}",
        "exchange.wire=float16",
        f"output={output}",
        *overrides,
        *(["checkpoint.resume=true"] if resume else []),
    ]
    ready = set_up(job_file.load(None, given), engine)
    train(ready, 0.0)
    return ready.model


@check
def ranks_end_alike_with_gradients_in_low_rank() -> None:
    """A kernel of 64 x 64 travels as two of 64 x 2, also accumulated, several steps a call."""
    for options in ({}, {"accumulate": 2, "steps_per_execution": 2, "credit": 1}):
        made = model("adam", low_rank=2, **options)
        trained(made, accumulate=options.get("accumulate", 1))
        traced = made.ooodist.strategy.backward.steps[0]
        sent = sum(exchange.num_bytes for exchange in traced.exchanges)
        thin = 2 * (24 + 64) + 2 * (64 + 64)  # the kernels of two layers
        assert sent == 4 * (thin + 64 + 64 + 64 * 2 + 2)
        residuals = made.ooodist.strategy.rank_state.values("residual")
        assert residuals.keys() == {*KERNELS[:2]}
        assert all(value.any() for value in residuals.values())
        assert all(0 < error < 1 for error in made.history.history["low_rank_error"])


@check
def a_plan_in_low_rank_computes_what_low_rank_alone_does() -> None:
    """Whatever the order: exchanges in a bucket, and each after those before it."""
    alone = trained(model("adam", low_rank=2))
    exchanges = tuple(PlannedExchange((name,)) for name in (*BIASES, KERNELS[2]))
    thin = Plan(
        "thin",
        None,
        (*exchanges, PlannedExchange((KERNELS[0], KERNELS[1]))),
        credit=1,
        low_rank=(InLowRank(2, KERNELS[:2]),),
    )
    thin = replace(thin, by_urgency=engine.name == "byteps")
    made = model("adam", order=thin)
    assert_same(alone, trained(made))
    exchanged = [exchange.weights for exchange in made.ooodist.strategy.backward.steps[0].exchanges]
    assert exchanged[-2:] == [KERNELS[:2]] * 2
    assert len(exchanged) == len(thin.exchanges) + 1


@check
def a_plan_in_low_rank_is_found() -> None:
    """The smallest models have nothing to gain, but all of it runs."""
    made = model("adam", order="planned", low_rank=2, planning=PlanningConfig(trial=False))
    trained(made)
    (group,) = made.ooodist.strategy.backward.plan.low_rank
    assert group.rank == 2
    assert {*group.weights} == {*KERNELS[:2]}
    assert made.ooodist.strategy.rank_state.values("residual").keys() == {*KERNELS[:2]}


@check
def the_first_steps_travel_whole() -> None:
    """As many as asked for, with a plan for each part of the training, or while plans are tried."""

    class Note(keras.callbacks.Callback):
        ooodist_reads_no_weights = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            strategy = self.model.ooodist.strategy
            seen.append((strategy.low_rank.is_on, *strategy.limits().ranks))

    thin = {"low_rank": 2, "low_rank_after": 3}
    at_once = {"steps_per_execution": 1, "planning": PlanningConfig(trial=False)}
    found = []
    for options in (
        thin,
        {**thin, "low_rank_after": 3 / (2 * STEPS)},
        {**thin, "order": "planned"},
        {**thin, "order": "planned", **at_once},
    ):
        seen: list[tuple[Any, ...]] = []
        made = model("adam", **options)
        found.append(trained(made, callbacks=[Note()]))
        assert seen == [(False,)] * 3 + [(True, 2)] * (2 * STEPS - 3)
        assert made.ooodist.strategy.rank_state.values("residual").keys() == {*KERNELS[:2]}
        assert_same(found[0], found[-1])
    assert [group.rank for group in made.ooodist.strategy.backward.plan.low_rank] == [2]
    assert_same(trained(model("adam")), trained(model("adam", low_rank=2, low_rank_after=8)))


class Spoiling(ooodist.Feature):
    """Makes the gradient of a weight infinite, on rank 1 in this step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def gradients(self, names: Any, gradients: Any) -> Any:
        is_now = tf.equal(self.state("steps", tf.zeros([], tf.int32)).assign_add(1), self.step)
        more = tf.where(is_now & (engine.rank == 1), np.inf, 0.0)
        return [g + more if n == KERNELS[0] else g for n, g in zip(names, gradients, strict=True)]


@check
def a_step_that_is_left_out_changes_nothing_in_low_rank() -> None:
    """Not even what is kept of a weight whose gradient is finite."""
    numbers = np.random.default_rng(engine.rank)
    x = numbers.normal(size=(STEPS * BATCH, 24)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    others = np.delete(np.arange(len(x)), range(2 * BATCH, 3 * BATCH))
    scaling = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=8.0, dynamic_growth_steps=1000
    )
    for optimizer, on_nan in (("adam", "skip"), (scaling, "stop")):
        found = []
        for step, rows in ((3, np.arange(len(x))), (0, others)):
            config = keras.optimizers.serialize(keras.optimizers.get(optimizer))
            own = keras.optimizers.deserialize(config)
            made = model(own, low_rank=2, on_nan=on_nan, features=[Spoiling(step)])
            data = tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(BATCH)
            made.fit(data, shuffle=False, verbose=0)
            state = made.ooodist.strategy.rank_state
            lost, right = state.values("residual").values(), state.values("low_rank").values()
            assert len(lost) == len(right) == 2
            ways = [each / np.linalg.norm(each) for each in right]  # the scale changes theirs
            found.append([*made.get_weights(), *lost, *ways])
        assert_same(*found)


@check
def a_gradient_in_low_rank_that_is_not_finite_ends_the_training() -> None:
    """And what it sends in its place says whose it was, and on which rank."""
    numbers = np.random.default_rng(engine.rank)
    x = numbers.normal(size=(STEPS * BATCH, 24)).astype(np.float32)
    made = model("adam", low_rank=2, features=[Spoiling(2)])
    message = f"step 2: the gradient of {KERNELS[0]} of rank 1 is not finite"
    with pytest.raises(ooodist.UserError, match=message):
        made.fit(x, (x.sum(axis=1) > 0).astype(np.int32), batch_size=BATCH, verbose=0)
    assert made.ooodist.strategy.backward.exchange.thin.keys() == {*KERNELS[:2]}


@check
def a_resumed_job_in_low_rank_is_the_uninterrupted_one() -> None:
    """Also if it was interrupted, after four steps, before or after low rank has begun."""
    thin = ("exchange.wire=float32", "exchange.low_rank=1", "checkpoint.every_epochs=1")
    for after in (3, 6):
        folder = Path(tempfile.gettempdir()) / f"ooodist-low-rank-{after}-{os.getppid()}"
        keys = (*thin, f"exchange.low_rank_after={after}")
        try:
            whole = job(folder / "whole", "epochs=2", *keys)
            job(folder / "parts", "epochs=1", *keys)
            resumed = job(folder / "parts", "epochs=2", *keys, resume=True)
            assert_same(whole.get_weights(), resumed.get_weights())
            assert resumed.ooodist.strategy.low_rank.is_on
        finally:
            engine.barrier()
            if engine.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)


@check
def looking_at_the_model_changes_nothing() -> None:
    """An evaluation in the middle of an epoch, and the exchanges of its weights."""

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            numbers = np.random.default_rng(5).normal(size=(8, 24)).astype(np.float32)
            self.model.evaluate(numbers, np.zeros(8), batch_size=4, verbose=0)

    alone = trained(model("sgd", wire="float16"))
    assert_same(alone, trained(model("sgd", wire="float16"), callbacks=[Look()]))


@check
def checkpoints_change_nothing_and_a_resumed_job_is_the_uninterrupted_one() -> None:
    """At the end of an epoch and in the middle of one; also after what was resumed is resumed."""
    folder = Path(tempfile.gettempdir()) / f"ooodist-wire-{os.getppid()}"
    often = ("checkpoint.every_steps=3", "checkpoint.keep=9", "checkpoint.background=false")
    try:
        whole = job(folder / "whole", "epochs=3", "checkpoint.every_epochs=0")
        parts = job(folder / "parts", "epochs=2", *often)
        kept = parts.ooodist.strategy.rank_state.values("residual")
        by_rank = {name: engine.gather(value) for name, value in kept.items()}
        _, last = folders.checkpoints(folder / "parts")[-1]
        with KerasFile(last) as saved:
            residuals = saved.by_rank()
        assert residuals.keys() == {
            f"residual/{weight.path}" for weight in whole.trainable_variables
        }
        for name, value in residuals.items():
            np.testing.assert_array_equal(value, by_rank[name.removeprefix("residual/")])
            assert (value[0] != value[1]).any()
        resumed = job(folder / "parts", "epochs=3", *often, resume=True)
        assert_same(whole.get_weights(), resumed.get_weights())
        within = folder / "parts" / folders.file_name(1, 2)
        again = job(folder / "again", "epochs=3", *often, f"checkpoint.resume={within}")
        assert_same(whole.get_weights(), again.get_weights())
        other = job(folder / "parts", "epochs=4", "exchange.wire=float32", resume=True)
        assert not other.ooodist.strategy.rank_state.values("residual")
    finally:
        engine.barrier()
        if engine.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run(engine, sys.argv[1:])
