"""Steps whose gradients are not finite are left out, if asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.checkpoint import archive
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.errors import UserError
from ooodist.settings.elastic import ElasticConfig
from ooodist.settings.sections import ExchangeConfig
from ooodist.settings.training import Training
from ooodist.step.finiteness import finite
from ooodist.step.finiteness.skipping import (
    Skipping,
    all_finite,
    changed_by_forward,
    summed,
)
from tests.checkpoint.examples import state_of
from tests.job.test_distribute import data, make

pytestmark = pytest.mark.usefixtures("local_engine")
BATCH = 8


def without_dropout(optimizer: Any = None, **options: Any) -> keras.Model:
    """Random numbers go on in a step that is left out."""
    model = make(optimizer, **options)
    next(each for each in model.layers if isinstance(each, keras.layers.Dropout)).rate = 0.0
    return model


def state(model: keras.Model) -> list[np.ndarray]:
    held = (*model.variables, *model.optimizer.variables)
    return [v.numpy() for v in held if "seed" not in v.path]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "compiling"),
    [
        ({}, {"run_eagerly": True}),
        ({"steps_per_execution": 2, "order": "first_k", "k": 2}, {}),
        ({"accumulate": 2}, {}),
    ],
    ids=["eager", "several steps", "accumulated"],
)
def test_all_is_as_if_there_were_no_such_step(
    options: dict[str, Any], compiling: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    x, y = data(12 * BATCH)
    x[3 * BATCH + 1] = np.nan
    size = BATCH * options.get("accumulate", 1)
    left_out = np.arange(len(x)) // size == 3 * BATCH // size
    found = []
    for keeps in (np.ones(len(x), bool), ~left_out):
        adam = keras.optimizers.Adam(0.01, global_clipnorm=1.0, use_ema=True, epsilon=1e-3)
        model = ooodist.distribute(without_dropout(adam, **compiling), on_nan="skip", **options)
        history = model.fit(x[keeps], y[keeps], BATCH, shuffle=False, verbose=0).history
        found.append([*state(model), *(np.array(each) for each in history.values())])
        assert model.ooodist.strategy.watch.num_skipped == keeps.all()
    assert_same(*found)
    assert np.isfinite(found[0][-1]).all()
    step = 3 * BATCH // size + 1
    assert f"step {step}: the gradient of " in caplog.text
    assert caplog.text.count("(on_nan: skip)") == 1


def test_where_all_is_finite_it_is_plain_training() -> None:
    x, y = data()
    plain, skipping = without_dropout(), without_dropout()
    plain.optimizer.build(plain.trainable_variables)  # else Keras traces its step twice
    plain.fit(x, y, BATCH, shuffle=False, verbose=0)
    ooodist.distribute(skipping, on_nan="skip").fit(x, y, BATCH, shuffle=False, verbose=0)
    for one, other in zip(state(plain), state(skipping), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_call_of_several_steps_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = data()
    x[::BATCH] = np.nan  # in each step
    model = ooodist.distribute(without_dropout(), on_nan="skip", steps_per_execution=3)
    before = state(model)
    model.fit(x, y, BATCH, epochs=2, shuffle=False, verbose=0)
    assert_same(before, state(model)[: len(before)])
    assert model.ooodist.strategy.watch.num_skipped == 2 * len(x) // BATCH
    assert caplog.text.count("it is left out") == 4
    assert caplog.text.count("4 more steps of this epoch were left out") == 2


def test_a_training_that_does_not_recover_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "MOST_IN_A_ROW", 3)
    x, y = data(10 * BATCH)
    x[BATCH] = x[2 * BATCH] = np.nan  # two in a row are few enough
    x[5 * BATCH :] = np.nan
    model = ooodist.distribute(without_dropout(), on_nan="skip")
    message = r"^step 8: the gradient of .*, and the 2 before it were left out"
    with pytest.raises(UserError, match=message):
        model.fit(x, y, BATCH, shuffle=False, verbose=0)
    assert all(np.isfinite(each).all() for each in state(model))


class OwnStep(keras.Model):
    """With two optimizers, of which one is built in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = keras.layers.Dense(3), keras.layers.Dense(3)
        self.second = keras.optimizers.Adam(0.1)

    def call(self, x: Any) -> Any:
        return self.other(self.one(x))

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        for layer, optimizer in ((self.one, self.optimizer), (self.other, self.second)):
            weights = layer.trainable_variables
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x))
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_a_train_step_of_ones_own_with_two_optimizers() -> None:
    x = np.random.default_rng(1).normal(size=(24, 4)).astype(np.float32)
    y = np.zeros((24, 3), np.float32)
    bad = x.copy()
    bad[8] = np.inf
    found = []
    for given in (bad, np.delete(x, range(8, 16), axis=0)):
        keras.utils.set_random_seed(2)
        model = OwnStep()
        model(x)
        model.compile("sgd", "mse", jit_compile=False)
        ooodist.distribute(model, on_nan="skip")
        model.fit(given, y[: len(given)], BATCH, shuffle=False, verbose=0)
        found.append([*state(model), *(v.numpy() for v in model.second.variables)])
        assert int(model.second.iterations) == 2
    assert_same(*found)


def test_a_loss_that_is_scaled_is_left_to_its_optimizer() -> None:
    x, y = data()
    x[17] = np.nan
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = ooodist.distribute(without_dropout(scaled), on_nan="skip")
    assert model.ooodist.strategy.watch.skipping is None
    with pytest.raises(UserError, match="is NaN"):  # statistics, which it does not look after
        model.fit(x, y, BATCH, shuffle=False, verbose=0)
    assert int(scaled.iterations) == len(x) // BATCH - 1


def test_ignored_is_what_it_says(tmp_path: Path) -> None:
    x, y = data()
    x[17] = np.nan
    model = ooodist.distribute(without_dropout(), on_nan="ignore")
    model.fit(x, y, BATCH, epochs=2, shuffle=False, verbose=0)
    assert np.isnan(model.get_weights()[0]).all()
    archive.write(tmp_path / "a.keras", ModelContent(model, state_of(1), checks=False))
    with pytest.raises(UserError, match=r"is not finite at .* so it is not saved"):
        archive.write(tmp_path / "b.keras", ModelContent(model, state_of(1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nan": "resume"}, "on_nan is resume; it must be one of stop, skip, ignore"),
        ({"on_nan": "skip", "wire": "float16"}, "on_nan is skip, but wire is float16"),
        ({"on_nan": "skip", "elastic": {"rho": 0.5}}, "on_nan is skip, but elastic trains"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ooodist.distribute(without_dropout(), **options)


def test_what_can_be() -> None:
    for on_nan in ("stop", "ignore"):
        Training(on_nan=on_nan, exchange=ExchangeConfig(wire="float16"), elastic=ElasticConfig())
    Training(on_nan="skip")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sums_say_whether_all_is_finite(dtype: str, bad: float) -> None:
    largest = tf.dtypes.as_dtype(dtype).max
    dense = tf.cast(tf.fill((1000,), min(float(largest), 1e30)), dtype)
    rows = tf.IndexedSlices(tf.reshape(dense, (10, 100)), tf.range(10), tf.constant([50, 100]))
    for gradient in (dense, rows):
        assert summed(gradient).dtype == tf.float32
        assert np.isfinite(summed(gradient))
    assert all_finite([dense, None, rows])
    assert all_finite([])
    assert not all_finite([rows, None, tf.concat([dense, tf.constant([bad], dense.dtype)], 0)])


def test_what_a_forward_pass_changes_and_the_counts() -> None:
    model = without_dropout()
    names = [variable.path for variable in changed_by_forward(model)]
    assert any("moving_mean" in name for name in names)
    assert not any("seed" in name or "kernel" in name for name in names)
    skipping = Skipping(model)
    for verdict, counts in ((False, (1, 1)), (False, (2, 2)), (True, (2, 0)), (False, (3, 1))):
        skipping.note(tf.constant(verdict))
        assert (int(skipping.total), int(skipping.in_a_row)) == counts


@pytest.mark.parametrize("values", [(1.0, 1.0), (np.nan, 1.0), (1.0, np.inf), (np.nan, np.nan)])
def test_each_step_of_a_call_decides_for_itself(values: tuple[float, ...]) -> None:
    model = without_dropout("sgd")
    weights = model.trainable_variables
    model.optimizer.build(weights)
    skipping, counts = Skipping(model), [tf.Variable(0) for _ in values]

    def call() -> None:
        for value, count in zip(values, counts, strict=True):
            with skipping.step():
                gradients = [tf.fill(weight.shape, value) for weight in weights]
                model.optimizer.apply(gradients, weights)
                skipping.if_finite(partial(count.assign_add, 1))

    tf.function(call, autograph=False)()
    finite = [bool(np.isfinite(value)) for value in values]
    assert [int(count) for count in counts] == finite
    assert int(model.optimizer.iterations) == sum(finite)
    assert int(skipping.total) == len(values) - sum(finite)
