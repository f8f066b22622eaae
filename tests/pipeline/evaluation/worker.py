"""evaluate and predict of a pipeline, on two ranks: ``mpirun -np 2 python worker.py CHECK...``.

``training_worker.py`` compares all kinds of models with one process; here is what else there is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

import ooodist
from ooodist import engines
from ooodist.compat import keras_deferred
from ooodist.engines import arrays
from ooodist.engines.communicator import Communicator
from ooodist.errors import UserError
from ooodist.pipeline.evaluation import rows
from ooodist.util.patience import Patience

layers = keras.layers

SAMPLES, FEATURES, CLASSES = 50, 6, 4
BATCH = 8  # of the training; 50 samples end with a smaller one
X = np.random.default_rng(1).normal(size=(SAMPLES, FEATURES)).astype(np.float32)
Y = np.random.default_rng(2).integers(0, CLASSES, SAMPLES).astype(np.int32)
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "verbose": 0}


class Penalty(keras.layers.Layer):
    """Adds to the loss in proportion to what passes through it."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


class Squared(keras.Model):
    """Squares the loss, and scales it while it trains."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return keras.ops.square(loss) * (3.0 if training else 1.0)


class OwnSteps(keras.Model):
    """Evaluates and predicts in its own way."""

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)

    def predict_step(self, data: Any) -> Any:
        return super().predict_step(data)


def make(kind: Any = keras.Model, *, adds_loss: bool = True) -> keras.Model:
    """A compiled model, with the same weights each time; stage 1 begins with "middle"."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    regularizer = keras.regularizers.L2(1e-2) if adds_loss else None
    image = keras.Input((FEATURES,))
    x = layers.Dense(8, activation="relu", kernel_regularizer=regularizer)(image)
    x = layers.BatchNormalization(momentum=0.5)(x)
    if adds_loss:
        x = Penalty()(x)
    x = layers.Dropout(0.5)(layers.Dense(8, activity_regularizer=regularizer, name="middle")(x))
    x = layers.Dense(8, activation="relu", kernel_regularizer=regularizer)(x)
    model = kind(image, layers.Dense(CLASSES, activation="softmax")(x))
    model.compile(
        keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def pipelined(model: keras.Model, **options: Any) -> keras.Model:
    settings = {"schedule": "1f1b", "split": ("middle",)} | options
    return ooodist.pipelined(model, pipeline=2, microbatches=4, timeout=120, **settings)


def evaluated(model: keras.Model, *data: Any, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.evaluate(*data, return_dict=True, **(OPTIONS | options))
    return found


def close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
    engines.current().check_equal("the metrics", str(sorted(found.items())))


def predicts(model: keras.Model, expected: keras.Model, x: Any = X, **options: Any) -> None:
    found = model.predict(x, **(OPTIONS | options))
    wanted = expected.predict(x, **(OPTIONS | options))
    if engines.current().rank:
        assert found is None
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message with which it is refused, the same on all ranks."""
    message = ""
    try:
        call(*arguments, **options)
    except UserError as error:
        message = str(error)
    engines.current().check_equal("the message", message)
    return message


@functools.cache
def trained() -> tuple[keras.Model, keras.Model]:
    """The whole model of one process, and a pipeline that has trained it; made once, for speed."""
    expected, model = make(), pipelined(make())
    model.fit(X, Y, BATCH, verbose=0)
    with ooodist.whole(model):
        expected.set_weights(model.get_weights())
    return expected, model


# The checks


def check_before_training() -> None:
    """Stages are made of the first batch, of any size; the training makes its own."""
    expected, model = make(), pipelined(make())
    message = refused(model.predict, X, **OPTIONS)
    assert "has no stages yet" in message
    assert "call fit or evaluate before predict" in message
    close(evaluated(model, X, Y, batch_size=7), evaluated(expected, X, Y, batch_size=7))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(15)
    close(evaluated(model, data, batch_size=None), evaluated(expected, data, batch_size=None))
    predicts(model, expected)
    model.fit(X, Y, BATCH, epochs=2, shuffle=False, verbose=0)  # other batches: other stages
    with ooodist.whole(model):
        expected.set_weights(model.get_weights())
    close(evaluated(model, X, Y), evaluated(expected, X, Y))
    assert "4 micro-batches" in refused(evaluated, pipelined(make()), X[:3], Y[:3])
    endless = ((X[:8], Y[:8]) for _ in range(3))
    assert "x is a generator" in refused(evaluated, pipelined(make()), endless, batch_size=None)


def check_without_the_weights_of_others() -> None:
    """No rank gets the value of a variable that only another stage has."""
    expected, model = trained()
    here = engines.current().rank
    [stage] = [s for s in model.ooodist.strategy.assembly.stages if s.number == here]
    own = {id(variable) for variable in stage.model.variables}
    others = [variable for variable in model.variables if id(variable) not in own]
    assert others
    close(evaluated(model, X, Y), evaluated(expected, X, Y))
    predicts(model, expected)
    assert not any(map(keras_deferred.has_value, others))


def check_what_the_class_overrides() -> None:
    expected = make(Squared, adds_loss=False)
    model = pipelined(make(Squared, adds_loss=False))
    close(evaluated(model, X, Y), evaluated(expected, X, Y))
    model = pipelined(make(OwnSteps))
    assert "OwnSteps has a test_step of its own" in refused(evaluated, model, X, Y)
    assert "OwnSteps has a predict_step of its own" in refused(model.predict, X, **OPTIONS)


def check_one_batch_is_refused() -> None:
    _, model = trained()
    message = refused(model.test_on_batch, X[:BATCH], Y[:BATCH])
    assert message.startswith("test_on_batch gives one batch")
    assert message.endswith("use evaluate")
    assert refused(model.predict_on_batch, X[:BATCH]).endswith("use predict")


def check_train_on_batch() -> None:
    """It is a step of fit."""
    one, other = pipelined(make()), pipelined(make())
    for first in (0, BATCH):
        one.train_on_batch(X[first : first + BATCH], Y[first : first + BATCH])
    other.fit(X[: 2 * BATCH], Y[: 2 * BATCH], BATCH, shuffle=False, verbose=0)
    with ooodist.whole(one), ooodist.whole(other):
        for weight, same in zip(one.weights, other.weights, strict=True):
            np.testing.assert_array_equal(weight.numpy(), same.numpy(), weight.path)


class Seen(keras.callbacks.Callback):
    """Keeps what callbacks see; ends an evaluation after some batches."""

    def __init__(self, stops_after: int | None = None) -> None:
        super().__init__()
        self.logs: list[dict[str, Any]] = []
        self._stops_after = stops_after

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append({name: np.array(value) for name, value in logs.items()})
        self.model.stop_evaluating = len(self.logs) == self._stops_after


def check_callbacks_see_each_batch() -> None:
    """With the metrics so far; an evaluation that they end has the metrics up to there."""
    expected, model = trained()
    for stops_after in (None, 1, 3, None):
        seen, wanted = Seen(stops_after), Seen(stops_after)
        found = evaluated(model, X, Y, callbacks=[seen])
        close(found, evaluated(expected, X, Y, callbacks=[wanted]))
        assert len(seen.logs) == len(wanted.logs)
        for one, other in zip(seen.logs, wanted.logs, strict=True):
            close(one, other)
        close(found, seen.logs[-1])
    assert len(seen.logs) == -(-SAMPLES // BATCH)


def check_steps_of_endless_data() -> None:
    """No more batches are evaluated or predicted than asked for, of data that goes on."""
    expected, model = trained()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat()
    options = {"batch_size": None, "steps": 5}
    close(evaluated(model, data, **options), evaluated(expected, data, **options))
    given = iter(data)
    read = (next(given) for _ in range(30))
    close(evaluated(model, read, **options), evaluated(expected, data, **options))
    inputs = tf.data.Dataset.from_tensor_slices(X).batch(4).repeat()
    for steps in (1, 5, 40):  # in the middle of a call, and in several
        predicts(model, expected, inputs, batch_size=None, steps=steps)


def check_after_another_compile() -> None:
    """Metrics and loss are those of the latest; predictions need neither. The last of these."""
    expected, model = trained()
    for each in (expected, model):
        metrics = ["mae", keras.metrics.F1Score()]  # one score a class
        each.compile("sgd", "mse", metrics=metrics, steps_per_execution=3)
    predicts(model, expected)
    one_hot = np.eye(CLASSES, dtype=np.float32)[Y]
    found = evaluated(model, X, one_hot)
    assert found["f1_score"].shape == (CLASSES,)
    close(found, evaluated(expected, X, one_hot))
    seen, wanted = Seen(), Seen()
    evaluated(model, X, one_hot, callbacks=[seen])
    evaluated(expected, X, one_hot, callbacks=[wanted])
    assert len(seen.logs) == len(wanted.logs) == 3


def check_stages_of_a_rank() -> None:
    """Several of them, in the order of zb_v: 0 1 1 0."""
    expected = make()
    split = ("middle", "dense_1", "dense_2")
    model = pipelined(make(), split=split, schedule="zb_v", chunks=2)
    close(evaluated(model, X, Y), evaluated(expected, X, Y))
    predicts(model, expected)
    assert model.ooodist.strategy.assembly.plan.schedule.rank_of == (0, 1, 1, 0)


def check_elastic() -> None:
    expected, model = make(), pipelined(make(), elastic={"rho": 0.95})
    model.fit(X, Y, BATCH, epochs=2, validation_data=(X, Y), verbose=0)
    with ooodist.whole(model):
        expected.set_weights(model.get_weights())
    close(evaluated(model, X, Y), evaluated(expected, X, Y))
    predicts(model, expected)


def check_rows_come_together() -> None:
    """Those of all ranks, in parts that MPI takes, of any number of rows."""
    ranks, most = Communicator.of_all(), arrays.MOST_BYTES
    for arrays.MOST_BYTES in (7, most):
        for counts in ((3, 5), (0, 4), (2, 0)):
            mine = counts[ranks.rank]
            first = np.arange(10.0 * mine).reshape(mine, 2, 5) + 1000 * ranks.rank
            second = np.arange(mine, dtype=np.int8)
            found = rows.gather_rows([first, second], ranks, Patience(20))
            if ranks.rank:
                assert found is None
                continue
            assert found is not None
            before, behind = counts
            one, other = (np.arange(10.0 * n).reshape(n, 2, 5) for n in counts)
            np.testing.assert_array_equal(found[0], np.concatenate([one, other + 1000]))
            assert found[1].tolist() == [*range(before), *range(behind)]


if __name__ == "__main__":
    ooodist.init("mpi")
    for check in sys.argv[1:]:
        globals()[check]()
        MPI.COMM_WORLD.Barrier()
        print(f"held: {check}", flush=True)
