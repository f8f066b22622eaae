"""One worker of the jobs in test_sharded.py: an optimizer whose state is divided among the ranks.

Usage: sharding_worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402

from ooodist.compat.keras_deferred import has_value  # noqa: E402
from ooodist.planner.data_parallel.plan import InLowRank, Plan, PlannedExchange  # noqa: E402
from ooodist.settings.sections import PlanningConfig  # noqa: E402
from tests.workers import check, run  # noqa: E402

layers, optimizers = keras.layers, keras.optimizers
BATCH, STEPS = 4, 5
KERNELS = tuple(f"net/layer{number}/kernel" for number in (1, 2, 3))
BIASES = tuple(f"net/layer{number}/bias" for number in (1, 2, 3))
SCALES = ("net/batch_normalization/gamma", "net/batch_normalization/beta")
OF_EACH_ENGINE = ("momentum", "decay", "adamw", "scaled norm")
State = list[np.ndarray]


def schedule() -> optimizers.schedules.LearningRateSchedule:
    return optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)


OPTIMIZERS: dict[str, Callable[[], optimizers.Optimizer]] = {
    "without state": lambda: optimizers.SGD(0.05),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.3),
    "adam": lambda: optimizers.Adam(1e-2, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(schedule(), weight_decay=0.5, clipnorm=0.4),
    "decay": lambda: optimizers.AdamW(schedule(), weight_decay=0.5, amsgrad=True),
    "nadam": lambda: optimizers.Nadam(1e-2),
    "averages": lambda: optimizers.Adam(1e-2, use_ema=True, ema_overwrite_frequency=3),
    "global norm": lambda: optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.1),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2), initial_scale=2.0**60),
    "scaled norm": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(1e-2, global_clipnorm=0.1), initial_scale=2.0**60
    ),
    "whole weights": lambda: optimizers.Lamb(1e-2),
}


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(count, 24)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int32)


def model(optimizer: optimizers.Optimizer, **options: Any) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(100 + engine.rank)
    made = keras.Sequential(
        [
            keras.Input((24,)),
            layers.Dense(64, activation="relu", name="layer1", kernel_constraint="max_norm"),
            layers.BatchNormalization(),
            layers.Dense(64, activation="relu", name="layer2"),
            layers.Dense(2, name="layer3"),
        ],
        name="net",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return ooodist.distribute(made, **options)


def state(made: keras.Model) -> State:
    return [np.array(variable.numpy()) for variable in (*made.weights, *made.optimizer.variables)]


def whole_state(made: keras.Model) -> State:
    with ooodist.whole(made):
        found = state(made)
    engine.check_equal("all state", b"".join(value.tobytes() for value in found))
    return found


def fitted(made: keras.Model, accumulate: int = 1, **options: Any) -> State:
    """Trains and returns losses of all epochs, and all state after it."""
    x, y = data(STEPS * accumulate * BATCH * engine.size)
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2, **options}
    history = made.fit(x, y, **given).history
    return [*map(np.array, history.values()), *whole_state(made)]


def assert_same(ours: State, theirs: State) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if engine.size == 2:
            np.testing.assert_array_equal(one, other)
        else:  # an all-reduce adds the ranks' gradients in an order of its own
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def assert_equal_to_the_whole(
    optimizer: Callable[[], optimizers.Optimizer], accumulate: int = 1, **options: Any
) -> None:
    both = []
    for shard_optimizer in (False, True):
        made = model(optimizer(), shard_optimizer=shard_optimizer, **options)
        both.append(fitted(made, options.get("accumulate", 1)))
    assert_same(*both)


@check
def numbers_are_those_of_an_optimizer_on_all_ranks() -> None:
    for name in OF_EACH_ENGINE:
        assert_equal_to_the_whole(OPTIMIZERS[name])


@check
def so_they_are_with_other_optimizers() -> None:
    for name in [each for each in OPTIMIZERS if each not in OF_EACH_ENGINE]:
        assert_equal_to_the_whole(OPTIMIZERS[name])


def plan(steps: int) -> Plan:
    """Carries a chunked kernel, half of another one and the biases into the next call."""
    exchanges = (
        PlannedExchange((KERNELS[2],)),
        PlannedExchange((KERNELS[0],), 0, 2, carried=True),
        PlannedExchange((KERNELS[0],), 1, 2),
        PlannedExchange((*BIASES, *SCALES), carried=True),
        PlannedExchange((KERNELS[1],), 0, 2, carried=True),
        PlannedExchange((KERNELS[1],), 1, 2, carried=True),
    )
    return Plan("p", None, exchanges, credit=2, steps_per_execution=steps)


def thin_plan() -> Plan:
    """Sends two kernels in low rank, in one bucket, and carries the small weights."""
    small = PlannedExchange((*BIASES, *SCALES), carried=True)
    return Plan(
        "thin",
        None,
        (small, PlannedExchange(KERNELS[2:]), PlannedExchange(KERNELS[:2])),
        credit=2,
        low_rank=(InLowRank(2, KERNELS[:2]),),
        steps_per_execution=2,
    )


@check
def so_they_are_however_gradients_travel() -> None:
    for optimizer, options in (
        ("averages", {"order": plan(1)}),
        ("adamw", {"order": plan(2)}),
        ("adam", {"order": "first_k", "k": 2, "steps_per_execution": 2, "accumulate": 2}),
        ("scaled", {"wire": "float16", "credit": 1, "bucket_bytes": 0}),
        ("momentum", {"low_rank": 2}),
        ("adam", {"order": thin_plan()}),
    ):
        assert_equal_to_the_whole(OPTIMIZERS[optimizer], **options)


@check
def so_they_are_if_steps_are_left_out() -> None:
    """One sample of one rank is not finite."""
    x, y = data(STEPS * BATCH * engine.size)
    x[2 * BATCH * engine.size + 1, 0] = np.inf
    found = []
    for shard_optimizer in (False, True):
        made = model(optimizers.Adam(1e-2), on_nan="skip", shard_optimizer=shard_optimizer)
        made.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, epochs=2)
        assert made.ooodist.strategy.watch.num_skipped == 2
        found.append(whole_state(made))
    assert_same(*found)
    assert all(np.isfinite(value).all() for value in found[0])


@check
def so_they_are_in_other_ways_to_train() -> None:
    """With a plan that is found here, eagerly, batch by batch, compiled again, in 16 bits."""
    folder = engine.broadcast_text(tempfile.mkdtemp())
    planning = PlanningConfig(trial=False, profiles=folder)
    found_here = {"shard_optimizer": True, "order": "planned", "planning": planning}
    for low_rank in (None, 2):
        planned = model(optimizers.Adam(1e-2), low_rank=low_rank, **found_here)
        expected = fitted(model(optimizers.Adam(1e-2), low_rank=low_rank))
        assert_same(expected, fitted(planned))
        assert bool(planned.ooodist.strategy.planned.plan.low_rank) == bool(low_rank)
    if engine.rank == 0:
        shutil.rmtree(folder)
    x, y = data(STEPS * BATCH * engine.size)
    for precision in ("float32", "bfloat16", "mixed_float16"):
        found = []
        for shard_optimizer in (False, True):
            keras.config.set_dtype_policy(precision)
            made = model(optimizers.Adam(1e-2), shard_optimizer=shard_optimizer)
            keras.config.set_dtype_policy("float32")
            before = made.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
            made.run_eagerly = precision == "float32"
            found.append([*map(np.array, before.values()), *fitted(made, epochs=1)])
            made.compile("adam", made.loss, run_eagerly=made.run_eagerly, jit_compile=False)
            for batch in range(3):
                at = slice(BATCH * (batch * engine.size + engine.rank), None)
                made.train_on_batch(x[at][:BATCH], y[at][:BATCH])
            with ooodist.whole(made):
                found[-1] += [v.numpy() for v in made.trainable_weights + made.optimizer.variables]
        assert_same(*found)


class EachBatch(keras.callbacks.Callback):
    """Calls a function after each batch."""

    ooodist_reads_no_weights = True

    def __init__(self, function: Callable[[keras.Model], None]) -> None:
        super().__init__()
        self._function = function

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._function(self.model)


@check
def each_rank_keeps_a_part_until_the_end() -> None:
    def look(made: keras.Model) -> None:
        slots = [v for v in made.optimizer.variables if len(v.shape)]
        own = np.array([has_value(v) for v in slots], np.int32)
        in_slices = engine.all_reduce(own, "sum") == 0  # in all other places are whole ones
        assert (engine.all_reduce(own, "max") == 1 - in_slices).all()
        slices = made.ooodist.strategy.sharded.slices.values()
        assert in_slices.sum() == 2 * len(slices) > 0  # two moments
        sizes = np.array([np.prod(v.shape) for v in slots])
        assert 2 * sum(each.size for each in slices) * engine.size == sizes @ in_slices
        parts = engine.gather(np.array(own @ sizes + sizes @ in_slices // engine.size))
        assert parts.max() <= max(2 * sizes.max(), 1.1 * sizes.sum() / engine.size), parts
        absent = next(v for v, has in zip(slots, own, strict=True) if not has)
        with pytest.raises(
            ooodist.UserError, match=r"does not have it: (rank \d does|each has).*whole"
        ):
            absent.numpy()
        with ooodist.whole(made):
            assert all(has_value(v) for v in slots)
        assert [has_value(v) for v in slots] == own.astype(bool).tolist()

    alone, divided = (
        model(optimizers.Adam(1e-2), shard_optimizer=shard_optimizer)
        for shard_optimizer in (False, True)
    )
    expected = fitted(alone)
    assert_same(expected, fitted(divided, callbacks=[EachBatch(look)]))
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/model.keras"
        if engine.rank == 0:  # as programs for Horovod do
            divided.save(file)
            loaded = keras.models.load_model(file)
            assert_same(state(loaded), expected[-len(state(loaded)) :])
        else:
            with pytest.raises(ooodist.UserError, match=r"rank \d does.*ooodist.whole"):
                divided.save(file)
    # What rank 0 changes in between counts, as without it.
    for made in (alone, divided):
        if engine.rank == 0:
            made.optimizer.variables[2].assign(made.optimizer.variables[2] * 2)
    assert_same(fitted(alone), fitted(divided))


@check
def rank_0_alone_may_load_what_all_go_on_with() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = model(optimizers.Adam(1e-2))
        fitted(first)
        if engine.rank == 0:
            first.save(f"{folder}/model.keras")
        found = []
        for shard_optimizer in (False, True):
            made = model(optimizers.Adam(1e-2), shard_optimizer=shard_optimizer)
            if engine.rank == 0:
                made.optimizer.build(made.trainable_variables)
                made.load_weights(f"{folder}/model.keras")
            found.append(fitted(made))
        assert_same(*found)


@check
def rank_0_alone_may_take_averages_after_fit() -> None:
    made = model(OPTIMIZERS["averages"](), shard_optimizer=True)
    fitted(made)
    if engine.rank == 0:
        made.optimizer.finalize_variable_values(made.trainable_variables)


@check
def callbacks_save_and_restore() -> None:
    """ModelCheckpoint and BackupAndRestore on rank 0, the best epoch, other rates."""
    folder = Path(engine.broadcast_text(tempfile.mkdtemp()))
    found = []
    for shard_optimizer in (False, True):
        at = folder / str(shard_optimizer)
        options = {"shard_optimizer": shard_optimizer}
        callbacks = [
            keras.callbacks.ModelCheckpoint(at / "{epoch}.keras"),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
            keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
        ]
        found.append(fitted(model(optimizers.Adam(1e-2), **options), callbacks=callbacks))
        if engine.rank == 0:
            found[-1] += state(keras.models.load_model(at / "1.keras"))
        backup = keras.callbacks.BackupAndRestore(at, delete_checkpoint=False)
        fitted(model(optimizers.Adam(1e-2), **options), epochs=1, callbacks=[backup])
        found[-1] += fitted(model(optimizers.Adam(1e-2), **options), callbacks=[backup])
    assert_same(*found)
    if engine.rank == 0:
        shutil.rmtree(folder)


@check
def mistakes_are_named_on_all_ranks() -> None:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    class Apply(optimizers.SGD):
        def apply(self, *arguments: Any, **options: Any) -> None:
            super().apply(*arguments, **options)

    averages = optimizers.Adam(use_ema=True)
    for optimizer, message in (
        (optimizers.Adam(gradient_accumulation_steps=2), "gradient_accumulation_steps is 2"),
        (Apply(), "the optimizer Apply has an apply of its own"),
    ):
        with pytest.raises(ooodist.UserError, match=f"shard_optimizer is true, but.*{message}"):
            model(optimizer, shard_optimizer=True)
    made = model(optimizers.Adam(clipnorm=None if engine.rank else 0.5), shard_optimizer=True)
    x, y = data(4 * BATCH * engine.size)
    with pytest.raises(ooodist.UserError, match="how shard_optimizer slices"):
        made.fit(x, y, batch_size=BATCH, verbose=0)
    image = keras.Input((24,))
    made = Own(image, layers.Dense(2)(image))
    ooodist.distribute(made, shard_optimizer=True)
    made.compile("adam", "mse", jit_compile=False)  # afterwards
    with pytest.raises(ooodist.UserError, match="Own has a train_step of its own"):
        made.fit(x, y, batch_size=BATCH, verbose=0)
    for callback, message in (
        (keras.callbacks.SwapEMAWeights(), "SwapEMAWeights swaps weights and their averages"),
        (keras.callbacks.ModelCheckpoint("a.keras", save_freq=2), "save_freq=2"),
    ):
        made = model(averages, shard_optimizer=True)
        with pytest.raises(ooodist.UserError, match=message):
            made.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback])
    with pytest.raises(ooodist.UserError, match="elastic trains some of the weights, but shard"):
        model("sgd", shard_optimizer=True, elastic={"rho": 0.5})


if __name__ == "__main__":
    run(engine, sys.argv[1:])
