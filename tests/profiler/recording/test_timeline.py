"""What was imposed is what runs: the order of the units is read back from the profiler."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.graph.order import baseline_order, carries_edges
from ooodist.graph.units import Unit
from ooodist.profiler.recording.timeline import Timeline, make_timeline
from ooodist.profiler.recording.xplane import read_op_events, start_recording
from ooodist.step import backward
from tests.graph.models import MODELS
from tests.graph.test_order import first_k_order
from tests.report.recording import (
    convolutional_model,
    dense_model,
    distribute,
    distributed,
    fit,
    record_timeline,
    samples,
)

Order = Callable[[Sequence[Unit]], list[str]]


def executed_order(timeline: Timeline, step: int) -> list[str]:
    """The names of a step's backward units in the order in which they ran.

    A unit counts as run when the last of its ops that an order can hold back has started. (Not the
    first: a loop's counter, and its reads of saved tensors, run ahead of its data.) Units without
    such an op are left out: they run as soon as their data is there.
    """
    last = {
        run.name: max(event.start for event in run.gated)
        for run in timeline.units
        if run.step == step and run.kind != "F" and run.gated
    }
    return sorted(last, key=last.__getitem__)


def random_order(seed: int) -> Order:
    """A legal order, any of them."""

    def order(units: Sequence[Unit]) -> list[str]:
        chance = random.Random(seed)
        left, done = list(units), []
        while left:
            ready = [unit for unit in left if unit.needs <= set(done)]
            unit = chance.choice(ready)
            left.remove(unit)
            done.append(unit.name)
        return done

    return order


def first_k(k: int) -> Order:
    return lambda units: first_k_order(units, k)


ORDERS = {
    "baseline": baseline_order,
    **{f"first {k}": first_k(k) for k in (2, 3, 4)},
    **{f"random {seed}": random_order(seed) for seed in range(2)},
}


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, or with one core."""
    monkeypatch.setattr(backward, "UNITS_AT_A_TIME", 1)


@pytest.mark.parametrize("at_a_time", [2, 3])
def test_on_several_cores_a_unit_waits_for_all_but_the_last_few(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backward, "UNITS_AT_A_TIME", at_a_time)
    monkeypatch.setattr(backward.os, "sched_getaffinity", lambda _: {0, 1})
    model = distributed(convolutional_model, order=first_k(3))
    timeline = record_timeline(model, 2, tmp_path)
    imposed = held_back(model)
    assert len(imposed) > 2 * at_a_time
    for step in range(2):
        runs = {run.name: run.gated for run in timeline.units if run.step == step}
        for at, name in enumerate(imposed):
            for other in imposed[: max(0, at + 1 - at_a_time)]:
                assert max(e.end for e in runs[other]) <= runs[name][0].start, (other, name)


@pytest.mark.parametrize(
    ("make", "order"),
    [
        *((dense_model, order) for order in ("first 3", "random 0")),
        *((convolutional_model, order) for order in ("baseline", "first 2", "first 4", "random 1")),
    ],
)
def test_executed_order_is_the_imposed_one(
    make: Callable[[], keras.Model], order: str, tmp_path: Path
) -> None:
    model = distributed(make, order=ORDERS[order], steps_per_execution=2)
    timeline = record_timeline(model, 4, tmp_path)
    assert timeline.launches == (2, 2)
    imposed = held_back(model)
    assert len(imposed) > 5
    for step in range(4):
        assert executed_order(timeline, step) == imposed
        # Each unit ended before the next began.
        runs = {run.name: run.gated for run in timeline.units if run.step == step}
        for first, second in itertools.pairwise(imposed):
            assert max(e.end for e in runs[first]) <= runs[second][0].start, (first, second)


# A loop of dX alone also computes the slope of the first state, which nobody waits for: it may run
# beside the unit behind the loop.
LOOSE = "recurrent_with_gradients_after_loop"


@pytest.mark.parametrize("name", [name for name in MODELS if name != LOOSE])
def test_executed_order_of_every_kind_of_model(name: str, tmp_path: Path) -> None:
    model, inputs, labels = MODELS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = [loss] * len(model.outputs) if len(model.outputs) > 1 else loss
    optimizer = keras.optimizers.SGD(0.01)
    if name == "mixed_float16":
        # Keras looks for infinity before it adds up what an embedding's row gets: with its own
        # first scale, sums that overflow get into the weights now and then.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**7)
    model.compile(optimizer, losses, jit_compile=False)
    steps = 2 if "recurrent" in name else 1  # in one graph, where each has loops of its own
    distribute(model, order=random_order(3), steps_per_execution=steps)
    two_batches = [np.concatenate([x, x]) for x in tf.nest.flatten((inputs, labels))]
    x, y = tf.nest.pack_sequence_as((inputs, labels), two_batches)

    model.fit(x, y, batch_size=4, verbose=0)
    start_recording(tmp_path)
    try:
        model.fit(x, y, batch_size=4, verbose=0)
    finally:
        tf.profiler.experimental.stop()
    timeline = make_timeline(read_op_events(tmp_path), model.ooodist.strategy.inner.backward.steps)
    assert timeline.launches == (steps,) * (2 // steps)
    for step in range(2):
        assert executed_order(timeline, step) == held_back(model)


def held_back(model: keras.Model) -> list[str]:
    """The imposed order, of the units that carry edges; others run when their data is there."""
    step = model.ooodist.strategy.inner.backward.steps[0]
    carrying = {unit.name for unit in step.backward if carries_edges(unit)}
    return [name for name in step.order if name in carrying]


def test_the_orders_differ() -> None:
    model = distributed(dense_model)
    fit(model, 1)
    units = model.ooodist.strategy.inner.backward.steps[0].backward
    orders = {name: tuple(order(units)) for name, order in ORDERS.items()}
    assert len(set(orders.values())) > 4
    assert [name for name in orders if orders[name] == orders["baseline"]] == ["baseline"]


def test_first_k_by_name(tmp_path: Path) -> None:
    model = distributed(dense_model, order="first_k", k=3)
    timeline = record_timeline(model, 2, tmp_path)
    weights = [name for name in executed_order(timeline, 1) if name.startswith("dW")]
    layers = [name.rpartition("/")[2] for name in weights]
    assert layers == ["layer4", "layer1", "layer2", "layer3"]


def test_another_launch_of_the_same_model_is_told_apart(tmp_path: Path) -> None:
    # Five steps by two: the last is traced as a launch of its own, with names of the first.
    model = distributed(dense_model, order=first_k(2), steps_per_execution=2)
    timeline = record_timeline(model, 5, tmp_path)
    assert (
        len({s.backward[0].ops[0].graph for s in model.ooodist.strategy.inner.backward.steps}) == 2
    )
    assert timeline.launches == (2, 2, 1)
    imposed = held_back(model)
    assert [executed_order(timeline, step) for step in range(5)] == [imposed] * 5


def test_evaluation_is_no_step(tmp_path: Path) -> None:
    model = distributed(dense_model)
    fit(model, 1)
    start_recording(tmp_path)
    try:
        model.evaluate(*samples(2), verbose=0)
    finally:
        tf.profiler.experimental.stop()
    events = read_op_events(tmp_path)
    assert any("Relu" in event.name for event in events)
    assert make_timeline(events, model.ooodist.strategy.inner.backward.steps).num_steps == 0


def test_forward_runs_layer_by_layer(tmp_path: Path) -> None:
    model = distributed(dense_model, order="first_k", k=4, steps_per_execution=3)
    timeline = record_timeline(model, 3, tmp_path)
    for step in range(3):
        runs = [run for run in timeline.units if run.step == step]
        forward = [run for run in runs if run.kind == "F"]
        assert len(forward) >= 4
        # Reads of weights and the value of the loss, which run at any time, are not counted.
        assert max(run.end for run in forward) <= min(run.start for run in runs if run.kind != "F")
        assert all(a.end <= b.start for a, b in itertools.pairwise(forward))
