"""Elastic training in one process: what is selected trains as ever, and all else rests."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.elastic.auto import rounds
from ooodist.elastic.auto.fall_meter import STRETCH
from ooodist.elastic.controller import Mask
from ooodist.errors import UserError
from ooodist.graph.digest import model_digest
from ooodist.graph.ops import ancestors
from ooodist.settings.sections import PlanningConfig
from ooodist.step.optimizer import optimizer_state_of
from ooodist.trainer.live import TIMED_CALLS, WARM_UP_CALLS
from tests.elastic.decisions import (
    CHANGING,
    Decision,
    Notes,
    decided,
    every_second,
    everything,
    head,
    head_and_deepest,
)

pytestmark = pytest.mark.usefixtures("equal_costs")
layers = keras.layers
optimizers = keras.optimizers
BATCH = 8
ELASTIC = {"rho": 0.99, "renew": "4 steps", "batches": 3}


def momentum() -> optimizers.Optimizer:
    return optimizers.SGD(0.05, momentum=0.9)


def adamw() -> optimizers.Optimizer:
    return optimizers.AdamW(1e-2, weight_decay=0.1, global_clipnorm=1.0)


def network(size: int = 6, channels: int = 2, classes: int = 3) -> keras.Model:
    """Two convolutions, batch norm and dropout; names are the same each time."""
    image = keras.Input((size, size, channels))
    x = layers.Conv2D(4, 3, padding="same", name="conv")(image)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    x = layers.Conv2D(4, 3, padding="same", activation="relu", name="other")(x)
    x = layers.Dropout(0.25, seed=2)(layers.GlobalAveragePooling2D()(x))
    x = layers.Dense(8, activation="gelu", kernel_regularizer="l2", name="hidden")(x)
    output = layers.Dense(classes, dtype="float32", name="out")(x)
    return keras.Model(image, output, name="small")


def make(optimizer: optimizers.Optimizer | None = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or momentum(), loss, jit_compile=False)
    return model


def data(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    return numbers.normal(size=(count, 6, 6, 2)).astype(np.float32), numbers.integers(0, 3, count)


def elastic(
    model: keras.Model, profiles: str, *, order: Any = "inorder", **settings: Any
) -> keras.Model:
    """With ELASTIC and such settings of distribute and of its ``elastic``."""
    of_distribute = {
        name: settings.pop(name)
        for name in ("steps_per_execution", "accumulate")
        if name in settings
    }
    return ooodist.distribute(
        model,
        order=order,
        elastic={**ELASTIC, **settings},
        planning=PlanningConfig(profiles=profiles, max_steps_per_execution=1),
        **of_distribute,
    )


def fit(
    model: keras.Model, decisions: Sequence[Decision] | None = None, **options: Any
) -> dict[str, Any]:
    x, y = data()
    options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    with nullcontext() if decisions is None else decided(decisions):
        return model.fit(x, y, **options).history


def state(model: keras.Model) -> list[bytes]:
    held = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    return [np.asarray(variable.numpy()).tobytes() for variable in held]


def trained(model: keras.Model) -> dict[str, dict[str, np.ndarray]]:
    """Each trained weight, with its optimizer state."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    weights = {weight.path: weight for weight in model.trainable_variables}
    found = {path: {"": weight.numpy()} for path, weight in weights.items()}
    for variable, weight in optimizer_state_of(optimizer, weights):
        if weight:
            found[weight][variable.path] = variable.numpy()
    return found


# Which weights move


@pytest.mark.parametrize(
    "make_optimizer",
    [adamw, lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2))],
    ids=["adamw", "loss scale"],
)
def test_what_is_not_selected_stays_bit_for_bit(
    make_optimizer: Callable[[], optimizers.Optimizer], profiles: str
) -> None:
    model = elastic(make(make_optimizer()), profiles)
    fit(model, [everything], epochs=1, steps_per_epoch=2)  # the optimizer state is not empty
    model.ooodist.strategy.controller.mask = None
    before = trained(model)
    statistics = [weight.numpy() for weight in model.get_layer("norm").non_trainable_variables]
    fit(model, [head_and_deepest])

    selected = model.ooodist.strategy.controller.mask.weights
    assert "out/kernel" in selected
    assert 0 < len(selected) < len(before)
    for name, values in trained(model).items():
        for variable, value in values.items():
            assert np.array_equal(value, before[name][variable]) == (name not in selected), (
                name,
                variable,
            )
    # The forward pass is that of training.
    for old, now in zip(statistics, model.get_layer("norm").non_trainable_variables, strict=True):
        assert not np.array_equal(old, now.numpy())


def plainly_trained(optimizer: optimizers.Optimizer, selected: Collection[str]) -> keras.Model:
    """With TensorFlow's tape over the selected variables, and nothing of ooodist."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True), training=True)
            weights = [weight for weight in self.trainable_variables if weight.path in selected]
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    model = make(optimizer)
    loss = model.loss
    model = Own(model.input, model.output)
    model.compile(optimizer, loss, jit_compile=False)
    optimizer.build(model.trainable_variables)
    fit(model)
    return model


def test_a_selection_trains_alike_in_any_order_and_without_ooodist(profiles: str) -> None:
    states = {}
    for order in ("inorder", "planned"):
        model = elastic(make(adamw()), profiles, order=order)
        fit(model, [every_second])
        selected = model.ooodist.strategy.controller.mask.weights
        states[order] = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    assert 2 < len(selected) < len(model.trainable_variables)
    plain = plainly_trained(adamw(), selected)
    expected = [v.numpy() for v in (*plain.variables, *plain.optimizer.variables)]
    for order, found in states.items():
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=order)


@pytest.fixture(scope="module")
def plain() -> tuple[dict[str, Any], list[bytes]]:
    """The history and the outcome of a training that selects nothing."""
    ooodist.init("local")
    model = ooodist.distribute(make(adamw()), accumulate=2)
    return fit(model), state(model)


def test_if_all_is_selected_it_is_plain_training(
    plain: tuple[dict[str, Any], list[bytes]], profiles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the real calibration."""
    monkeypatch.undo()
    model = elastic(make(adamw()), profiles, accumulate=2)
    with decided([everything]):
        model.ooodist.strategy.plan(data(BATCH))
        found = fit(model)
    history, expected = plain
    assert len(model.ooodist.strategy.controller.renewals) == 2
    assert found["loss"] == history["loss"]
    assert state(model) == expected


def test_a_rho_of_one_is_plain_training(
    plain: tuple[dict[str, Any], list[bytes]], profiles: str
) -> None:
    model = elastic(make(adamw()), profiles, accumulate=2, rho=1.0)
    assert isinstance(model.ooodist.strategy, DataParallel)
    assert (fit(model), state(model)) == plain


# What is traced


def ops_run(model: keras.Model, mask: Mask, kind: str) -> int:
    """How many such ops a step with a selection runs; its graph has more."""
    x, y = data(BATCH)
    execution = model.ooodist.strategy.selective.execution_for(mask)
    graph = execution.trace(((tf.constant(x), tf.constant(y)),))
    ops = ancestors([*(output.op for output in graph.outputs), *graph.control_outputs])
    return sum(op.type.startswith(kind) for op in ops)


@pytest.mark.parametrize("order", ["inorder", "planned"])
def test_each_selection_has_a_step_and_a_plan_of_its_own(order: str, profiles: str) -> None:
    model, notes = elastic(make(), profiles, order=order, renew="2 steps"), Notes()
    fit(model, [everything, head], epochs=1, callbacks=[notes])
    executions = [
        execution for _, execution in model.ooodist.strategy.selective.executions.values()
    ]
    assert len(executions) == 2
    for execution in executions:
        assert len(execution.backward.steps) == 1  # traced once, though each was selected twice

    found = {}
    for decision, mask in ((everything, notes.masks[0]), (head, notes.masks[-1])):
        assert model.ooodist.strategy.selective.execution_for(mask) in executions
        kinds = ("Conv2DBackpropFilter", "Conv2DBackpropInput", "Assign")
        found[decision] = [ops_run(model, mask, kind) for kind in kinds]
    # A step computes nothing for what is not selected.
    assert found[everything][:2] == [2, 1]
    assert found[head][:2] == [0, 0]
    # Of each of the eight weights that rest: itself, its momentum and its count.
    assert found[everything][2] - found[head][2] == 3 * 8
    inner = model.ooodist.strategy.inner
    for step in inner.backward.steps:
        units = [unit for unit in step.backward if unit.kind == "dW" or unit.variables]
        assert {name for unit in units for name in unit.variables} == notes.masks[-1].weights
        assert all(unit.variables for unit in units)
        if order == "planned":
            plan = inner.planned.plan
            assert plan.model == model_digest(step.backward)
            assert {n for e in plan.exchanges for n in e.weights} <= {"out/kernel", "out/bias"}


def test_no_more_traced_steps_are_kept_than_wanted(profiles: str) -> None:
    model = elastic(make(), profiles, renew="1 steps", cache=2)
    seen: list[int] = []

    class Count(Notes):
        def check(self, mask: Mask) -> None:
            kept = self.model.ooodist.strategy.selective.executions
            seen.append(len(kept))
            assert next(reversed(kept))[0] == mask.digest  # the latest is among them

    fit(model, CHANGING, epochs=1, steps_per_epoch=len(CHANGING), callbacks=[Count()])
    assert max(seen) == 2


# Launches


def test_steps_a_launch_change_nothing(profiles: str) -> None:
    states = []
    for number in (1, 2):
        model = elastic(make(), profiles, steps_per_execution=number, renew="8 steps")
        fit(model, [everything, every_second])
        states.append(state(model))
        assert [renewal.step for renewal in model.ooodist.strategy.controller.renewals] == [0, 8]
    assert states[0] == states[1]


def test_updates_of_several_batches_are_counted_once(profiles: str) -> None:
    model = elastic(make(adamw()), profiles, accumulate=2, steps_per_execution=2, renew="3 steps")
    fit(model, [every_second, head])
    assert int(model.optimizer.iterations) == 8
    controller = model.ooodist.strategy.controller
    assert [renewal.step for renewal in controller.renewals] == [0, 4]
    counts = controller.optimizer_state.state()
    assert counts["out/kernel"] == 8
    assert set(counts.values()) == {0, 8}  # of those that are not selected any more, none


# Batches that importance has looked at


class Seen(layers.Layer):
    """Notes the first number of each batch that is trained on; probing leaves no trace of it."""

    def build(self, shape: Any) -> None:
        self.numbers = self.add_weight(shape=(64,), initializer="zeros", trainable=False)
        self.count = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            number = tf.reshape(x, [-1])[:1]
            at = tf.reshape(self.count % 64, (1, 1))
            self.numbers.assign(tf.tensor_scatter_nd_update(self.numbers, at, number))
            self.count.assign_add(1)
        return x


def noting(profiles: str, **settings: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    numbers = keras.Input((4,))
    x = layers.Dense(8, name="hidden")(Seen(name="seen")(numbers))
    model = keras.Model(numbers, layers.Dense(3, name="out")(x), name="noting")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(momentum(), loss, jit_compile=False)
    return elastic(model, profiles, **{"renew": "2 steps", "batches": 5, **settings})


def seen_by(model: keras.Model) -> list[int]:
    seen = model.get_layer("seen")
    return seen.numbers.numpy()[: int(seen.count.numpy())].astype(int).tolist()


def batches(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(count):
        yield np.full((BATCH, 4), number, np.float32), np.zeros(BATCH, np.int32)


def arrays(count: int) -> list[np.ndarray]:
    """So many batches."""
    return [np.concatenate(part) for part in zip(*batches(count), strict=True)]


@pytest.mark.parametrize("how", [{"steps_per_execution": 3}, {"accumulate": 2}], ids=str)
def test_batches_are_trained_on_once_and_in_order(how: dict[str, int], profiles: str) -> None:
    model = noting(profiles, **how)
    model.fit(*arrays(12), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert seen_by(model) == [*range(12)] * 2
    assert len(model.ooodist.strategy.controller.renewals) > 3


def test_a_generator_of_unknown_length_is_used_up(profiles: str) -> None:
    model = noting(profiles, steps_per_execution=2)
    model.ooodist.strategy.plan(next(batches(1)))
    expected: list[int] = []
    for count in (1, 3, 11):
        model.ooodist.strategy.controller.mask = None  # begins with a selection
        model.fit(batches(count), verbose=0)
        expected += range(count)
        assert seen_by(model) == expected


def test_nothing_is_lost_between_epochs_of_endless_data(profiles: str) -> None:
    model = noting(profiles)
    model.ooodist.strategy.plan(next(batches(1)))
    model.fit(batches(99), epochs=3, steps_per_epoch=5, verbose=0)
    assert seen_by(model) == [*range(15)]


# What users do besides


def test_compile_again_gives_a_new_step(profiles: str) -> None:
    model, given = noting(profiles), arrays(6)
    model.fit(*given, batch_size=BATCH, verbose=0)
    model.compile(optimizers.SGD(0.0), model.loss, jit_compile=False)
    before = trained(model)
    model.fit(*given, batch_size=BATCH, verbose=0)
    for name, values in trained(model).items():
        np.testing.assert_array_equal(values[""], before[name][""], err_msg=name)


def test_a_single_batch_can_be_trained_on_before_all_else(profiles: str) -> None:
    model = noting(profiles)
    model.train_on_batch(*next(batches(1)))
    assert int(model.optimizer.iterations) == 1
    assert model.ooodist.strategy.controller.mask is not None


def test_reports_tell_of_the_selection(profiles: str) -> None:
    model = noting(profiles)
    with decided([head]):
        history = model.fit(*arrays(6), batch_size=BATCH, epochs=2, verbose=0).history
    assert history["elastic_share"][1] == pytest.approx(27 / 67)
    assert history["elastic_exchanged_bytes"] == [0, 0]  # there is nobody to exchange with
    assert history["elastic_rho"][1] > 0


def test_a_rho_that_is_too_small_is_refused_before_the_first_step(profiles: str) -> None:
    model = elastic(make(), profiles, rho=0.01)
    before = state(model)
    with pytest.raises(UserError, match="the smallest feasible rho is"):
        fit(model)
    assert state(model)[: len(before)] == before


def test_rho_auto_begins_in_full_and_tries_smaller_ones(
    profiles: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # So short a training has no time to lose, and would stay full.
    monkeypatch.setattr(rounds, "MOST_LOST", 1e6)
    model = elastic(make(), profiles, rho="auto", renew="100 steps")
    shares: list[int] = []

    def add(*_: Any, **__: Any) -> None:
        controller = controller_of(model)
        shares.append(0 if controller is None else len(controller.mask.weights))

    note = keras.callbacks.LambdaCallback(on_train_batch_end=add)
    with caplog.at_level("INFO", logger="ooodist"):
        x, y = (np.concatenate([part] * 90)[: 90 * BATCH] for part in data())
        model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[note])
    controller, steps = controller_of(model), STRETCH
    every = max(shares)
    assert len(shares) == 270
    begun = WARM_UP_CALLS + TIMED_CALLS
    assert shares[:begun] == [0] * begun  # nothing is measured yet
    shares = shares[begun:]
    assert controller._steps == 270
    assert shares[:steps] == shares[2 * steps : 3 * steps] == [every] * steps
    assert max(shares[steps : 2 * steps]) < every
    assert caplog.text.count("elastic: rho auto: ") >= 1
    restored = rounds.AutoRho(controller.auto.ladder)
    restored.restore(json.loads(json.dumps(controller.state()["auto"])))
    assert restored == controller.auto


@pytest.mark.parametrize("make_optimizer", [momentum, adamw])
def test_a_training_that_is_too_short_for_rho_auto_is_as_without_elastic(
    tmp_path: Path,
    make_optimizer: Callable[[], optimizers.Optimizer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is measured, and no bit differs."""
    found = []
    for is_elastic in (False, True):
        model = make(make_optimizer())
        if is_elastic:
            elastic(model, str(tmp_path), rho="auto")
        else:
            ooodist.distribute(model)
        with caplog.at_level("INFO", logger="ooodist"):
            history = fit(model, epochs=3)
        found.append(state(model))
        assert model.ooodist.strategy.selection() is None
    assert found[0] == found[1]
    assert history["elastic_share"] == [1, 1, 1]
    assert not list(tmp_path.iterdir())
    assert caplog.text.count("rho auto: training goes on in full") == 1


def test_rho_auto_goes_on_with_the_selection_of_a_checkpoint(
    profiles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it measures before the first step. Until a round begins, all is as without elastic."""
    monkeypatch.setattr(rounds, "MOST_LOST", 1e6)
    x, y = (np.concatenate([part] * 90)[: 20 * BATCH] for part in data())
    plain = ooodist.distribute(make())
    expected = plain.fit(x, y, batch_size=BATCH, verbose=0).history["loss"]
    first = elastic(make(), profiles, rho="auto", renew="100 steps")
    assert first.fit(x, y, batch_size=BATCH, verbose=0).history["loss"] == expected
    assert state(first) == state(plain)
    saved = json.loads(json.dumps(first.ooodist.strategy.selection()))
    assert saved["steps"][0] == 20
    other = elastic(make(), profiles, rho="auto", renew="100 steps")
    other.ooodist.strategy.restore_selection(saved)
    assert other.ooodist.strategy.selection() == saved
    other.fit(x, y, batch_size=BATCH, steps_per_epoch=1, verbose=0)
    assert controller_of(other).state()["steps"][0] == 21


@pytest.mark.parametrize("option", ["always", "gradient_accumulation_steps"])
def test_what_is_wrong_with_rho_auto_is_said_before_the_first_step(
    profiles: str, option: str
) -> None:
    if option == "always":
        model = elastic(make(), profiles, rho="auto", always=["conf"])
    else:
        optimizer = optimizers.SGD(0.05, gradient_accumulation_steps=2)
        model = elastic(make(optimizer), profiles, rho="auto")
    with pytest.raises(UserError, match=option):
        fit(model)
    assert model.optimizer.iterations.numpy() == 0


def controller_of(model: keras.Model) -> Any:
    return model.ooodist.strategy.controller
