"""One worker of the jobs in test_carried.py: exchanges that outlive their call, on all ranks.

Usage: carried_worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ooodist.graph.ops import ancestors, producers  # noqa: E402
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange  # noqa: E402
from ooodist.step.backward import OrderedBackward  # noqa: E402
from ooodist.step.exchange import GradientExchange  # noqa: E402
from ooodist.step.execution import Execution  # noqa: E402
from tests.workers import check, run  # noqa: E402

layers = keras.layers
BATCH, STEPS = 4, 5
KERNELS = tuple(f"net/layer{number}/kernel" for number in (1, 2, 3))
BIASES = tuple(f"net/layer{number}/bias" for number in (1, 2, 3))
# The lowest two kernels in chunks, the biases in one bucket.
EXCHANGES = (
    PlannedExchange((KERNELS[2],)),
    PlannedExchange((KERNELS[0],), 0, 2),
    PlannedExchange((KERNELS[0],), 1, 2),
    PlannedExchange(BIASES),
    PlannedExchange((KERNELS[1],), 0, 2),
    PlannedExchange((KERNELS[1],), 1, 2),
)
CARRIED = (*BIASES, f"{KERNELS[0]}[1/2]", KERNELS[1])  # half of the first kernel
Optimizer = keras.optimizers.Optimizer
State = list[np.ndarray]


def plan(carried: Sequence[str] = CARRIED, steps: int = 1) -> Plan:
    """Carries the exchanges of these names, and all of these weights."""
    names = set(carried)
    exchanges = (replace(e, carried=bool(names & {e.name, *e.weights})) for e in EXCHANGES)
    made = Plan("carrying", None, tuple(exchanges), credit=2)
    return replace(made, steps_per_execution=steps, by_urgency=engine.name == "byteps")


def momentum() -> Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.3)


def adamw() -> Optimizer:
    """All that an update depends on besides the gradient."""
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)
    return keras.optimizers.AdamW(
        schedule, weight_decay=0.5, clipnorm=0.4, use_ema=True, ema_overwrite_frequency=3
    )


def decayed() -> Optimizer:
    """TensorFlow rearranges the product of weight, decay and rate, but not in each graph."""
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)
    return keras.optimizers.AdamW(schedule, weight_decay=0.5)


def adam() -> Optimizer:
    return keras.optimizers.Adam(1e-2, amsgrad=True)


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(count, 24)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int32)


def model(optimizer: Optimizer, plan: Plan, **options: Any) -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(100)
    made = keras.Sequential(
        [
            keras.Input((24,)),
            layers.Dense(64, activation="relu", name="layer1", kernel_constraint="max_norm"),
            layers.Dense(64, activation="relu", name="layer2", kernel_constraint="max_norm"),
            layers.Dense(2, name="layer3"),
        ],
        name="net",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return ooodist.distribute(made, order=plan, **options)


def variables(made: keras.Model) -> list[keras.Variable]:
    return [*made.weights, *made.optimizer.variables]


def state(made: keras.Model) -> State:
    return [np.array(variable.numpy()) for variable in variables(made)]


def assert_same(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def fitted(made: keras.Model, accumulate: int = 1, **options: Any) -> list[Any]:
    """Trains and returns losses of all epochs, and all state after it."""
    x, y = data(STEPS * accumulate * BATCH * engine.size)
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2, **options}
    history = made.fit(x, y, **given).history
    return [*map(np.array, history.values()), *state(made)]


def holds(made: keras.Model) -> bool:
    return made.ooodist.strategy.carrying._held is not None


class Each(keras.callbacks.Callback):
    """Calls a function after each batch."""

    def __init__(self, function: Callable[[keras.Model, int], None], reads: bool) -> None:
        super().__init__()
        self.ooodist_reads_no_weights = not reads
        self._function = function

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._function(self.model, batch)


def at_other_rates(rates: Sequence[float]) -> Each:
    """Sets the learning rate after each batch."""

    def set_rate(made: keras.Model, batch: int) -> None:
        made.optimizer.learning_rate = rates[batch % len(rates)]

    return Each(set_rate, reads=False)


@check
def the_numbers_are_those_of_calls_that_leave_nothing() -> None:
    numbers: list[bool] = []

    def note(made: keras.Model, _batch: int) -> None:
        numbers.append(holds(made))

    held = data(3 * BATCH * engine.size)
    for optimizer, steps, accumulate, rates, carried, options in (
        (momentum, 1, 1, (0.05, 0.01, 0.2), CARRIED, {"validation_data": held}),
        (adamw, 1, 1, (), (*KERNELS, *BIASES), {}),
        (adam, 2, 2, (), (f"{KERNELS[0]}[0/2]", KERNELS[1]), {}),
    ):
        results = []
        for names in ((), carried):
            numbers.clear()
            made = model(optimizer(), plan(names, steps), accumulate=accumulate)
            callbacks = [Each(note, reads=False), *([at_other_rates(rates)] if rates else [])]
            results.append(fitted(made, accumulate, callbacks=callbacks, **options))
            assert set(numbers) == {bool(names)}
            assert not holds(made)
            engine.check_equal("weights", b"".join(value.tobytes() for value in state(made)))
            assert int(made.optimizer.iterations) == 2 * STEPS
            exchanged = made.ooodist.strategy.inner.backward.steps[0].exchanges
            planned = plan(names).exchanges
            left = [each for each in planned if each.carried]
            if steps == 1:
                assert len(made.ooodist.strategy.inner.backward.steps) == 1  # traced once
                others = [each for each in planned if not each.carried]
                assert [e.name for e in exchanged] == [e.name for e in (*left, *others)]
        assert_same(*results)


@check
def each_layer_waits_for_its_own_update_alone() -> None:
    made = model(momentum(), plan())
    fitted(made, epochs=1)
    (step,) = made.ooodist.strategy.inner.backward.steps
    graph = step.exchanges[0].op.graph
    sums = {exchange.name: exchange.op for exchange in step.exchanges}
    products = [op for op in graph.get_operations() if op.type == "MatMul"][:3]  # of F1, F2, F3
    # The bias of a layer comes after the product, and before that of the next layer.
    first_to_wait = {KERNELS[0]: 0, BIASES[0]: 1, KERNELS[1]: 1}
    for number, product in enumerate(products):
        before = set(ancestors(producers(product)))
        for each in plan().exchanges:
            waits = each.carried and number >= first_to_wait[each.weights[0]]
            assert (sums[each.name] in before) == waits


@check
def who_looks_at_weights_between_calls_sees_them_complete() -> None:
    seen: list[State] = []

    def look(made: keras.Model, batch: int) -> None:
        seen.append(state(made))

    def look_now_and_then(made: keras.Model, batch: int) -> None:
        if batch % 2:
            assert holds(made)
            ooodist.flush(made)
            ooodist.flush(made)  # nothing is left
            seen.append(state(made))

    expected = fitted(model(decayed(), plan(())), callbacks=[Each(look, reads=True)])
    complete = seen.copy()
    for function, reads, at in ((look, True, slice(None)), (look_now_and_then, False, None)):
        seen.clear()
        made = model(decayed(), plan())
        assert_same(fitted(made, callbacks=[Each(function, reads)]), expected)
        wanted = complete if at else [complete[n] for n in (1, 3, 6, 8)]
        assert_same([v for each in seen for v in each], [v for each in wanted for v in each])
    seen.clear()
    fitted(model(decayed(), plan()), callbacks=[Each(look, reads=False)])
    differs = [
        any((a != b).any() for a, b in zip(one, other, strict=True))
        for one, other in zip(seen, complete, strict=True)
    ]
    assert all(differs)  # what it has asked for


@check
def single_batches_and_evaluations_find_complete_weights() -> None:
    x, y = data(STEPS * BATCH * engine.size)
    mine = slice(engine.rank * BATCH, (engine.rank + 1) * BATCH)
    results = []
    for names in ((), CARRIED):
        made = model(momentum(), plan(names))
        losses = []

        def evaluate(made: keras.Model, batch: int) -> None:
            if batch == 2:
                losses.append(made.evaluate(x, y, BATCH, verbose=0))  # noqa: B023

        ours = fitted(made, callbacks=[Each(evaluate, reads=False)])
        for _ in range(2):
            losses.append(made.train_on_batch(x[mine], y[mine]))
            assert not holds(made)
        results.append([*ours, *fitted(made, epochs=1), *map(np.array, losses)])
    assert_same(*results)


@check
def a_backup_is_of_complete_weights() -> None:
    folder = Path(tempfile.gettempdir()) / f"ooodist-carried-{engine.name}-{engine.rank}"
    shutil.rmtree(folder, ignore_errors=True)
    plain = model(adamw(), plan(()))
    fitted(plain)

    class Interrupted(Exception):
        pass

    def interrupt(epoch: int, logs: Any) -> None:
        if epoch == 1:
            raise Interrupted

    for stops in (True, False):
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt if stops else None)
        made = model(adamw(), plan())
        try:
            fitted(made, callbacks=[backup, stop])
        except Interrupted:
            assert not holds(made)
    assert_same(state(made), state(plain))
    shutil.rmtree(folder, ignore_errors=True)


@check
def what_an_exception_leaves_is_applied_by_flush_alone() -> None:
    class Stopped(Exception):
        pass

    def stop(made: keras.Model, batch: int) -> None:
        if batch == 2:
            raise Stopped

    def stop_within_an_epoch(made: keras.Model) -> State:
        with pytest.raises(Stopped):
            fitted(made, callbacks=[Each(stop, reads=False)])
        assert not holds(made)
        return state(made)

    plain, made = model(momentum(), plan(())), model(momentum(), plan())
    complete, incomplete = stop_within_an_epoch(plain), stop_within_an_epoch(made)
    assert any((a != b).any() for a, b in zip(incomplete, complete, strict=True))
    made.evaluate(*data(BATCH * engine.size), verbose=0)
    assert_same(state(made), incomplete)
    ooodist.flush(made)
    assert_same(state(made), complete)
    complete, _ = stop_within_an_epoch(plain), stop_within_an_epoch(made)
    for variable, value in zip(variables(made), complete, strict=True):
        variable.assign(value)  # to which what was left does not belong
    assert_same(fitted(made, epochs=1), fitted(plain, epochs=1))
    stop_within_an_epoch(made)
    if engine.rank:
        made.ooodist.strategy.carrying._abandoned = None
    with pytest.raises(ooodist.UserError, match=r"what ooodist\.flush applies"):
        ooodist.flush(made)


@check
def launches_of_different_plans_take_turns() -> None:
    """As live planning has them."""
    x, y = data(BATCH * engine.size * 6)
    batches = [
        (tf.constant(x[at : at + BATCH]), tf.constant(y[at : at + BATCH]))
        for at in range(engine.rank * BATCH, len(x), BATCH * engine.size)
    ]
    results = []
    for carries in (False, True):
        made = model(adamw(), plan(()))
        strategy = made.ooodist.strategy
        made.optimizer.build(made.trainable_variables)
        launches = []
        for names in (CARRIED, KERNELS[:1], ()) if carries else ((),):
            backward = OrderedBackward(GradientExchange(engine), plan(names))
            launches.append(Execution(made, backward, carrying=strategy.carrying))
        launches = launches if carries else 3 * launches
        held = []
        for batch, at in zip(batches, (0, 0, 1, 2, 1, 0), strict=True):
            launches[at]([batch])
            held.append(holds(made))
        assert held == [carries and at != 2 for at in (0, 0, 1, 2, 1, 0)]
        with strategy.carrying.none():
            launches[1](batches[:1])
            assert not holds(made)
        results.append(state(made))
    assert_same(*results)


@check
def what_cannot_be_carried_is_refused() -> None:
    x, y = data(BATCH * engine.size)
    for optimizer, match in (
        (keras.optimizers.Nadam(), r"carries the exchanges of 5 weights .* Nadam is not"),
        (keras.optimizers.SGD(0.1, global_clipnorm=2.0), r"global_clipnorm = 2 .* set carried"),
    ):
        with pytest.raises(ooodist.UserError, match=match):
            model(optimizer, plan()).fit(x, y, batch_size=BATCH, verbose=0)


if __name__ == "__main__":
    run(engine, sys.argv[1:])
