"""OptimizerState: each weight is updated as if it had been trained as often as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.step.backward import OrderedBackward, variable_names
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Execution
from ooodist.step.optimizer import optimizer_state_of
from tests.pipeline.models import MODELS
from tests.profiler.models import batch, compiled, layers

RATE = 1e-5  # so small that the gradients of some steps are nearly the same
optimizers = keras.optimizers
Make = Callable[[], optimizers.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda: optimizers.SGD(RATE, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(RATE, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(RATE, weight_decay=0.01),
    "adamax": lambda: optimizers.Adamax(RATE),
    "nadam": lambda: optimizers.Nadam(RATE),
    "lamb": lambda: optimizers.Lamb(RATE),
    "lion": lambda: optimizers.Lion(RATE),
    "rmsprop": lambda: optimizers.RMSprop(RATE, momentum=0.9, centered=True),
    "adagrad": lambda: optimizers.Adagrad(RATE, initial_accumulator_value=0.3),
    "adadelta": lambda: optimizers.Adadelta(RATE),
    "ftrl": lambda: optimizers.Ftrl(RATE, initial_accumulator_value=0.2),
    "adafactor": lambda: optimizers.Adafactor(RATE),
    "average": lambda: optimizers.Adam(RATE, use_ema=True),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(RATE, 5, 0.5)),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(RATE)),
}
for name in ("Muon", "ScheduleFreeAdamW"):  # younger Kerases alone have them
    if hasattr(optimizers, name):
        OPTIMIZERS[name.lower()] = lambda name=name: getattr(optimizers, name)(RATE)
# Keras keeps something for all weights together that a new weight is not given anew.
SHARED = {"nadam"}
BELOW = ["a/kernel", "a/bias"]


def model_of(
    optimizer: optimizers.Optimizer,
    weights: Sequence[np.ndarray] | None = None,
    *,
    eager: bool = False,
) -> keras.Model:
    """Layers a and b."""
    keras.utils.set_random_seed(5)
    numbers = keras.Input((32,))
    output = layers.Dense(5, name="b")(layers.Dense(8, activation="tanh", name="a")(numbers))
    model = compiled(keras.Model(numbers, output), optimizer, run_eagerly=eager)
    if weights is not None:
        model.set_weights(weights)
    optimizer.build(model.trainable_variables)  # one keeps a copy of the weights
    return model


def step_of(
    model: keras.Model,
    optimizer_state: OptimizerState | None,
    selected: Collection[str] | None = None,
) -> Callable[[], Any]:
    """A step on a batch that is always the same; without ``optimizer_state``, as Keras counts."""
    backward = OrderedBackward(GradientExchange(LocalEngine()), selected=selected)
    launch = Execution(
        model, backward, updating=None if optimizer_state is None else optimizer_state.counting
    )
    batches = tf.nest.map_structure(tf.convert_to_tensor, (batch(),))
    return lambda: launch(batches)


def train(
    model: keras.Model,
    optimizer_state: OptimizerState | None,
    steps: int = 1,
    selected: Collection[str] | None = None,
) -> None:
    step = step_of(model, optimizer_state, selected)
    for _ in range(steps):
        step()


def values(model: keras.Model) -> dict[str, np.ndarray]:
    return {weight.path: weight.numpy() for weight in model.trainable_variables}


def kept_for(model: keras.Model, names: Collection[str]) -> dict[str, np.ndarray]:
    """The optimizer state of some weights."""
    optimizer = model.optimizer
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    found = optimizer_state_of(optimizer, {w.path: w for w in model.trainable_variables})
    return {variable.path: variable.numpy() for variable, weight in found if weight in names}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("name", ["nadam", "average", "loss scale"])
def test_where_all_is_trained_it_is_as_if_nobody_counted(name: str) -> None:
    plain, counted = model_of(OPTIMIZERS[name]()), model_of(OPTIMIZERS[name]())
    optimizer_state = OptimizerState(counted)
    train(plain, None, 4)
    train(counted, optimizer_state, 4)
    assert (
        set(optimizer_state.state().values()) == {4} == {int(counted.optimizer.iterations.numpy())}
    )
    assert_same(values(plain), values(counted))
    for one, other in zip(plain.optimizer.variables, counted.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)


def test_each_weight_is_counted_by_itself_and_from_the_steps_before() -> None:
    model = model_of(OPTIMIZERS["adam"]())
    optimizer_state = OptimizerState(model)
    train(model, optimizer_state, 2)
    train(model, optimizer_state, 3, selected=["b/bias"])
    counts = {"a/kernel": 2, "a/bias": 2, "b/kernel": 2, "b/bias": 5}
    assert optimizer_state.state() == counts
    assert int(model.optimizer.iterations) == 5
    # Of a model that nobody counted for, each weight has had all steps.
    again = OptimizerState(model)
    assert again.state() == dict.fromkeys(counts, 5)
    again.restore(json.loads(json.dumps(optimizer_state.state())))  # from a checkpoint
    assert again.state() == optimizer_state.state() == counts


def largest_moves(
    model: keras.Model, optimizer_state: OptimizerState | None, steps: int = 20
) -> list[float]:
    """Of layer a's elements in each step, in learning rates."""
    moves, step = [], step_of(model, optimizer_state)
    for _ in range(steps):
        before = values(model)
        step()
        after = values(model)
        moves.append(max(np.abs(after[n] - before[n]).max() for n in BELOW) / RATE)
    return moves


@pytest.mark.parametrize("name", ["adamw", "adamax", "loss scale"])
def test_a_weight_that_comes_late_takes_steps_of_the_learning_rate(name: str) -> None:
    model = model_of(OPTIMIZERS[name]())
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    optimizer.iterations.assign(1000)
    optimizer_state = OptimizerState(model)
    optimizer_state.reset(BELOW)
    before = everything(model)
    moves = {}
    for counting in (False, True):
        for variable, value in before:
            variable.assign(value)
        moves[counting] = largest_moves(model, optimizer_state if counting else None)
    assert max(moves[True]) <= 1.1
    # So much would a common count make of it.
    if name == "adamax":
        assert moves[False][0] < 0.2 < 0.9 < moves[True][0]
    else:
        assert max(moves[False]) > 2


def everything(model: keras.Model) -> list[tuple[keras.Variable, np.ndarray]]:
    """What a step changes, with the present values."""
    return [(v, v.numpy()) for v in (*model.variables, *model.optimizer.variables)]


def test_a_weight_that_is_selected_after_many_steps() -> None:
    model = model_of(OPTIMIZERS["adam"]())
    optimizer_state = OptimizerState(model)
    train(model, optimizer_state, 200, selected=["b/kernel", "b/bias"])
    assert optimizer_state.state() == {"a/kernel": 0, "a/bias": 0, "b/kernel": 200, "b/bias": 200}
    before = everything(model)
    for counting, least, most in ((False, 2.0, 9.0), (True, 0.9, 1.1)):
        for variable, value in before:
            variable.assign(value)
        assert least < max(largest_moves(model, optimizer_state if counting else None)) < most


def test_nadam_never_takes_more_than_the_learning_rate() -> None:
    model = model_of(OPTIMIZERS["nadam"]())
    optimizer_state = OptimizerState(model)
    train(model, optimizer_state, 200, selected=["b/kernel", "b/bias"])
    assert max(largest_moves(model, optimizer_state)) <= 1.1


def test_a_schedule_goes_by_all_steps() -> None:
    model = model_of(OPTIMIZERS["schedule"]())
    optimizer_state = OptimizerState(model)
    model.optimizer.iterations.assign(10)  # two half-lives
    optimizer_state.reset(BELOW)
    assert largest_moves(model, optimizer_state, 1)[0] == pytest.approx(1 / 4, rel=1e-2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_reset_gives_weights_what_a_new_optimizer_has_and_leaves_all_else(name: str) -> None:
    model = model_of(OPTIMIZERS[name](), eager=True)
    optimizer_state = OptimizerState(model)
    first = kept_for(model, BELOW)
    assert first
    train(model, optimizer_state, 3)
    others, before = kept_for(model, ["b/kernel", "b/bias"]), kept_for(model, BELOW)
    weights = values(model)
    optimizer_state.reset(BELOW)
    averages = [path for path in before if path.endswith("_average")]
    assert len(averages) == (len(BELOW) if name == "average" else 0)
    assert all(before[path].any() for path in averages)
    if name != "schedulefreeadamw":  # what it keeps is no value of slots
        for path, value in kept_for(model, BELOW).items():
            expected = before if path in averages else first
            np.testing.assert_array_equal(value, expected[path], err_msg=path)
    assert_same(kept_for(model, ["b/kernel", "b/bias"]), others)
    assert_same(values(model), weights)
    assert optimizer_state.state() == {"a/kernel": 0, "a/bias": 0, "b/kernel": 3, "b/bias": 3}
    if name in SHARED or name == "schedule":
        return  # what is shared by all weights goes on
    new = model_of(OPTIMIZERS[name](), model.get_weights(), eager=True)
    train(model, optimizer_state)
    train(new, None)
    for weight in BELOW:
        np.testing.assert_array_equal(values(model)[weight], values(new)[weight], err_msg=weight)


def test_of_weights_of_one_path_only_the_selected_one_is_reset() -> None:
    model, *_ = MODELS["twins"]()
    model.compile(optimizers.SGD(momentum=0.9))
    model.optimizer.build(model.trainable_variables)
    optimizer_state, momentums = OptimizerState(model), model.optimizer.momentums
    names = variable_names(model.trainable_variables)
    assert {"one/kernel", "one/kernel#2"} <= {*names}
    for reset in ("one/kernel", "one/kernel#2"):
        for momentum in momentums:
            momentum.assign(tf.ones(momentum.shape))
        optimizer_state.reset([reset])
        kept = [bool(momentum.numpy().any()) for momentum in momentums]
        assert kept == [name != reset for name in names]


@pytest.mark.parametrize("scaled", [False, True])
def test_accumulation_of_the_optimizer_is_refused(scaled: bool) -> None:
    optimizer = optimizers.Adam(RATE, gradient_accumulation_steps=4)
    model = model_of(optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    with pytest.raises(UserError, match=r"gradient_accumulation_steps is 4.* set accumulate"):
        OptimizerState(model)


@pytest.mark.parametrize("fails", [False, True])
def test_afterwards_the_optimizer_is_as_it_was(fails: bool) -> None:
    model = model_of(OPTIMIZERS["adam"]())
    optimizer_state, before = OptimizerState(model), dict(vars(model.optimizer))
    try:
        with optimizer_state.counting():
            assert "update_step" in vars(model.optimizer)
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert vars(model.optimizer) == before
