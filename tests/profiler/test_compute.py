"""Measured steps: they leave no trace, and their parts add up."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph.ops import ancestors
from ooodist.graph.order import check_order
from ooodist.planner.costs import StepCosts
from ooodist.profiler.compute import measure_step
from ooodist.profiler.step import StepToMeasure, trace_step
from tests.profiler.models import (
    BATCH,
    batch,
    compiled,
    dense_chain,
    layers,
    measure_compute,
    with_everything,
)

TRIES = 5  # one is enough where nothing else runs
STEPS = 3  # recorded; enough where the numbers do not matter


def state(model: keras.Model) -> list[bytes]:
    held = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    return [np.asarray(variable.numpy()).tobytes() for variable in held]


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_everything("sgd", "mixed_bfloat16"),
        lambda: with_everything("adam", "mixed_float16"),  # with loss scaling
    ],
    ids=["mixed_bfloat16", "mixed_float16"],
)
def test_training_goes_on_as_if_nothing_had_been_measured(make: Callable[[], keras.Model]) -> None:
    """With float32: test_importance.py of tests/elastic."""
    plain, measured = make(), make()
    for model in (plain, measured):
        model.optimizer.build(model.trainable_variables)  # else Keras traces the first step twice
        model.fit(*batch(0), batch_size=BATCH // 2, verbose=0, shuffle=False)
    assert state(plain) == state(measured)
    measure_compute(measured, batch(1), steps=STEPS)
    assert state(plain) == state(measured)
    for model in (plain, measured):
        model.fit(*batch(2), batch_size=BATCH // 2, verbose=0, shuffle=False, epochs=2)
    assert state(plain) == state(measured)


def test_a_model_that_is_not_built_starts_as_if_nothing_had_been_measured() -> None:
    def make() -> keras.Model:
        keras.utils.set_random_seed(4)
        dense = layers.Dense(16, activation="relu")
        return compiled(keras.Sequential([dense, layers.Dropout(0.5), layers.Dense(5)]), "adam")

    plain, measured = make(), make()
    costs = measure_compute(measured, batch(0), steps=STEPS)
    assert len(costs.weights) == 4
    for model in (plain, measured):
        model.fit(*batch(1), batch_size=BATCH // 2, verbose=0, shuffle=False)
    assert state(plain) == state(measured)


def test_variables_that_keras_does_not_know_of_are_left_as_they_are() -> None:
    calls = tf.Variable(0)

    class Counting(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(5)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            calls.assign_add(1)
            return self.dense(x)

    model = compiled(Counting())
    model.fit(*batch(), batch_size=BATCH, verbose=0)
    before = int(calls.numpy())
    measure_compute(model, batch(), steps=STEPS)
    assert int(calls.numpy()) == before


def test_costs_describe_the_step() -> None:
    traced = trace_step(with_everything(), batch())
    costs = measure_step(traced, steps=STEPS)
    for units, measured in (
        (traced.step.forward, costs.forward),
        (traced.step.backward, costs.backward),
    ):
        assert [(u.name, u.kind, u.variables) for u in units] == [
            (u.name, u.kind, u.weights) for u in measured
        ]
    trained = {weight.name: weight for weight in costs.weights}
    model = with_everything()
    assert len(trained) == len(model.trainable_variables)
    assert sum(w.num_bytes for w in costs.weights) == 4 * sum(
        int(np.prod(v.shape)) for v in model.trainable_variables
    )
    assert all(weight.update_seconds > 0 for weight in costs.weights)
    assert costs.base_bytes >= 3 * sum(w.num_bytes for w in costs.weights)  # Adam keeps two more
    assert costs.trace_seconds > 0
    assert costs.launch_seconds > 0
    check_order(traced.step.backward, [unit.name for unit in costs.backward])


def big_chain() -> keras.Model:
    """About 60 ms a step on one core, most of it in three layers of known work."""
    model = keras.Sequential(
        [
            keras.Input((1024,)),
            layers.Dense(2048, name="wide"),
            layers.Dense(256, name="narrow"),
            layers.Dense(5, name="top"),
        ],
        name="big",
    )
    return compiled(model)


@pytest.mark.alone
def test_seconds_add_up_and_go_where_the_work_is() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(512, 1024)).astype(np.float32)
    y = random.integers(0, 5, 512).astype(np.int32)
    traced = trace_step(big_chain(), (x, y))
    for _ in range(2):
        _seconds(traced)
    wrong = None
    for _ in range(TRIES):
        before = [_seconds(traced) for _ in range(6)]
        costs = measure_step(traced)
        wrong = _what_is_wrong(costs, before + [_seconds(traced) for _ in range(6)])
        if wrong is None:
            break
    assert wrong is None


def _what_is_wrong(costs: StepCosts, calls: list[float]) -> dict[str, float] | None:
    """What does not fit: seconds measured in all against those of calls before and after, of layers
    against each other, and of units against the whole."""
    total = costs.compute_seconds + costs.launch_seconds
    fast = statistics.median(sorted(calls)[:6])
    seconds = _by_layer(costs)
    units = sum(unit.seconds for unit in (*costs.forward, *costs.backward))
    # Others may use this machine, and change its speed.
    found = {
        "total to slowest call": (total / max(calls), 0.0, 1.3),
        "total to fastest call": (total / min(calls), 1 / 1.3, math.inf),
        "total to median of fast calls": (total / fast, 0.6, 1.6),
        "units to whole": (units / costs.compute_seconds, 0.6, math.inf),
        "dW of wide to top": (seconds["dW", "wide"] / seconds["dW", "top"], 20, math.inf),
    }
    # 1024 x 2048 against 2048 x 256: four times the products, in F as in dW.
    for kind in ("F", "dW"):
        ratio = seconds[kind, "wide"] / seconds[kind, "narrow"]
        found[f"{kind} of wide to narrow"] = (ratio, 2, 8)
    wrong = {name: ratio for name, (ratio, low, high) in found.items() if not low < ratio < high}
    return wrong or None


def _seconds(traced: StepToMeasure) -> float:
    began = time.perf_counter()
    traced.execution(traced.batches)
    return time.perf_counter() - began


def _by_layer(costs: StepCosts) -> dict[tuple[str, str], float]:
    """Seconds by kind and layer; F in two units, of the kernel and the bias."""
    seconds: dict[tuple[str, str], float] = {}
    for unit in (*costs.forward, *costs.backward):
        layer = unit.name.split("/")[1].partition("#")[0]
        seconds[unit.kind, layer] = seconds.get((unit.kind, layer), 0.0) + unit.seconds
    return seconds


@pytest.mark.alone
def test_accumulated_batches_count() -> None:
    one, two = (
        min(
            measure_compute(with_everything(), batch(), accumulate=number, steps=3).middle_seconds
            for _ in range(2)
        )
        for number in (1, 2)
    )
    assert two > 2 * one  # the other batch's pass


def test_refuses_an_eager_step() -> None:
    with pytest.raises(UserError, match=r"runs eagerly.*run_eagerly=False"):
        measure_compute(compiled(dense_chain(), run_eagerly=True), batch())


def test_refuses_a_model_that_trains_nothing() -> None:
    model = dense_chain()
    model.trainable = False
    with pytest.raises(UserError, match=r"model chain .*0 backward passes"):
        measure_compute(compiled(model), batch())


def test_refuses_while_the_profiler_is_in_use(tmp_path: object) -> None:
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(UserError, match=r"profiler is in use.*end its recording before"):
            measure_compute(dense_chain(), batch(), steps=STEPS)
    finally:
        tf.profiler.experimental.stop(save=False)


def test_says_by_which_factor_it_was_scaled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "ooodist"):
        measure_compute(dense_chain(), batch(), steps=STEPS)
    assert "recorded seconds count" in caplog.text


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_no_weight_is_changed_before_the_last_unit_has_run(optimizer: str) -> None:
    """Interrupted by a unit, on the only core, an update would seem to take as long as that."""
    traced = trace_step(dense_chain(optimizer), batch())
    handles = {weight.handle.name for weight in traced.weights}
    assert len(handles) > 2
    changes = [
        op
        for op in traced.weights[0].handle.graph.get_operations()
        if op.type.startswith(("Assign", "ResourceApply")) and op.inputs[0].name in handles
    ]
    assert len(changes) == len(handles)
    units = {op for unit in traced.step.backward for op in unit.ops}
    for change in changes:
        assert units <= set(ancestors([change]))
