"""Checks on all ranks together: what users of Keras' fit, callbacks and metrics expect."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from tests.job.trained import (
    BATCH,
    assert_close,
    assert_equal_ranks,
    compiled,
    convolutional,
    engine,
    fresh,
    linear,
    rank,
    size,
    values,
)
from tests.workers import check, images

layers = keras.layers


@check
def metrics_and_statistics_of_all_ranks() -> None:
    count = 10 * BATCH * size + 3  # not a whole number of samples a rank
    x, y = images(count)
    model = fresh(lambda: convolutional(frozen_norm=False), 9)
    weighted = [keras.metrics.SparseCategoricalAccuracy(name="weighted")]
    compiled(model, keras.optimizers.SGD(0.05), weighted_metrics=weighted)
    ooodist.distribute(model)
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=2,
        verbose=0,
        validation_data=(x, y),
        class_weight={0: 1.0, 1: 3.0},
    )
    statistics = b"".join(v.numpy().tobytes() for v in model.non_trainable_variables)
    engine.check_equal("batch-norm statistics", statistics)
    ours = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    engine.check_equal("metrics", str(sorted(ours.items())))
    alone = compiled(keras.models.clone_model(model), "sgd")
    alone.set_weights(model.get_weights())
    whole = alone.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    np.testing.assert_allclose(ours["accuracy"], whole["accuracy"], rtol=1e-6)
    np.testing.assert_allclose(ours["loss"], whole["loss"], rtol=1e-5)
    assert model.predict(x[:3], verbose=0).shape == (3, 2)


@check
def data_sets_of_different_lengths() -> None:
    x, y = images(64)
    for known in (True, False):
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).take(5 + rank)
        if not known:
            data = data.filter(lambda *_: True)
        model = compiled(fresh(linear, 4), keras.optimizers.SGD(0.05))
        ooodist.distribute(model, steps_per_execution=2)
        model.fit(data, epochs=2, verbose=0)
        assert int(model.optimizer.iterations) == 10, int(model.optimizer.iterations)
        assert_equal_ranks(model)


@check
def callbacks_decide_alike_and_write_once() -> None:
    x, y = images(8 * BATCH * size)
    x[-1] = np.nan  # one rank alone sees it
    folder = Path(tempfile.gettempdir()) / f"ooodist-test-{engine.name}-{size}-{rank}"
    folder.mkdir(exist_ok=True)
    model = compiled(linear(), keras.optimizers.SGD(0.05))  # a ReLU would make a zero of the NaN
    ooodist.distribute(model)
    seen: list[float] = []
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=5,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda _batch, logs: seen.append(float(logs["loss"]))
            ),
        ],
    )
    engine.check_equal("losses", str(seen))
    assert len(seen) == 8, seen  # the first epoch's last step is the first with a NaN
    assert np.isnan(seen[-1])
    assert (folder / "log.csv").exists() == (rank == 0)


def with_two_inputs_and_outputs() -> keras.Model:
    first, second = keras.Input((5,)), keras.Input((3,))
    x = layers.Dense(6, activation="relu")(layers.Concatenate()([first, second]))
    return keras.Model([first, second], [layers.Dense(2, name=name)(x) for name in ("u", "v")])


@check
def lists_of_inputs_and_outputs() -> None:
    numbers = np.random.default_rng(1)
    count = 6 * BATCH * size
    inputs = [numbers.normal(size=(count, n)).astype(np.float32) for n in (5, 3)]
    labels = [(inputs[0].sum(axis=1) > 0).astype(np.int32), numbers.integers(0, 2, count)]
    results = []
    for is_ours in (True, False):
        model = fresh(with_two_inputs_and_outputs, 11 + (rank if is_ours else 0))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), [loss, loss], jit_compile=False)
        batch = BATCH * size
        if is_ours:
            ooodist.distribute(model, order="first_k", k=1)
            batch = BATCH
        model.fit(inputs, labels, batch_size=batch, shuffle=False, validation_split=0.5, verbose=0)
        evaluated = model.evaluate(inputs, labels, BATCH, verbose=0, return_dict=True)
        results.append((values(model), evaluated))
    assert_close(results[0][0], results[1][0])
    for name, value in results[1][1].items():
        np.testing.assert_allclose(results[0][1][name], value, rtol=1e-5)


@check
def class_weights_of_some_classes() -> None:
    x, y = images(6 * BATCH * size)
    weights = {0: 3}  # the other class weighs 1; a whole number
    results = []
    for is_ours in (True, False):
        model = compiled(fresh(linear, 12), keras.optimizers.SGD(0.05))
        batch = BATCH * size
        if is_ours:
            ooodist.distribute(model)
            batch = BATCH
        model.fit(x, y, batch_size=batch, shuffle=False, class_weight=weights, verbose=0)
        results.append(values(model))
    assert_close(*results)
    model = compiled(fresh(linear, 12), "sgd")
    ooodist.distribute(model)
    with pytest.raises(ooodist.UserError, match=r"class_weight is \{0: 3\}, but sample_weight is"):
        model.fit(x, y, class_weight=weights, sample_weight=np.ones(len(x)), verbose=0)


class Pieces(keras.utils.PyDataset):
    """Of images, in batches."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        x, y = images(2 * BATCH)
        return x[number * BATCH :][:BATCH], y[number * BATCH :][:BATCH]


@check
def arrays_with_validation_data_of_another_kind() -> None:
    x, y = images(4 * BATCH * size)
    held = images(2 * BATCH)
    for data in (tf.data.Dataset.from_tensor_slices(held).batch(BATCH), Pieces()):
        model = compiled(linear(), keras.optimizers.SGD(0.05))
        ooodist.distribute(model)
        history = model.fit(x, y, batch_size=BATCH, validation_data=data, verbose=0).history
        shared_out = model.evaluate(*held, verbose=0, return_dict=True)
        np.testing.assert_allclose(history["val_loss"], shared_out["loss"], rtol=1e-5)


@check
def single_batches_after_an_epoch() -> None:
    x, y = images(4 * BATCH * size)
    mine = slice(rank * BATCH, (rank + 1) * BATCH)
    model = compiled(fresh(linear, 4), keras.optimizers.SGD(0.05))
    ooodist.distribute(model, steps_per_execution=2)
    alone = compiled(fresh(linear, 4), keras.optimizers.SGD(0.05))
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    alone.fit(x, y, batch_size=BATCH * size, shuffle=False, verbose=0)
    for _ in range(3):
        model.train_on_batch(x[mine], y[mine], class_weight={1: 2.0})
        alone.train_on_batch(x[: BATCH * size], y[: BATCH * size], class_weight={1: 2.0})
    assert int(model.optimizer.iterations) == 7
    assert_close(values(model), values(alone))


@check
def shuffling_follows_the_seed_and_draws_from_no_sequence_of_the_program() -> None:
    def drawn() -> list[float]:
        return [random.random(), np.random.random(), float(tf.random.uniform([]))]

    x, y = images(5 * BATCH * size)
    results = []
    for seed in (21, 21, 22):
        model = compiled(linear(), "sgd")
        model.set_weights([np.ones((192, 2)), np.zeros(2)])
        ooodist.distribute(model)
        keras.utils.set_random_seed(seed + 100 * rank)  # rank 0's counts
        expected = drawn()
        keras.utils.set_random_seed(seed + 100 * rank)
        model.fit(x, y, batch_size=BATCH, verbose=0)
        assert drawn() == expected
        results.append(values(model))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert (results[0][0] != results[2][0]).any()


class Interrupted(Exception):
    pass


@check
def a_backup_is_restored_on_all_ranks() -> None:
    x, y = images(2 * BATCH * size)
    folder = Path(tempfile.gettempdir()) / f"ooodist-backup-{engine.name}-{size}-{rank}"
    shutil.rmtree(folder, ignore_errors=True)

    def train(seed: int, epochs: int, interrupt_at: int = -1) -> list[int]:
        seen: list[int] = []

        def begin(epoch: int, logs: Any) -> None:
            if epoch == interrupt_at:
                raise Interrupted
            seen.append(epoch)

        model = compiled(fresh(linear, seed + rank), keras.optimizers.Adam(1e-3))
        ooodist.distribute(model)
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        log = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
        try:
            model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[backup, log])
        except Interrupted:
            return seen
        assert_equal_ranks(model)
        engine.check_equal("iterations", str(model.optimizer.iterations.numpy()))
        assert int(model.optimizer.iterations) == 2 * epochs
        return seen

    assert train(10, 3, interrupt_at=2) == [0, 1]
    assert folder.exists() == (rank == 0)
    assert train(20, 3) == [2]
    assert train(30, 3) == []  # nothing is left to do, and all have what was trained
    shutil.rmtree(folder, ignore_errors=True)


@check
def a_gradient_that_is_not_finite_ends_all_ranks() -> None:
    class ZeroForNaN(layers.Layer):
        """The loss stays finite, as with TensorFlow's fused Relu on some processors."""

        def call(self, x: Any) -> Any:
            return tf.where(tf.math.is_finite(x), x, 0.0)

    x, y = images(8 * BATCH * size)
    x[(2 * size + 1) * BATCH] = np.nan  # in the third step of rank 1 alone
    hidden = [layers.Flatten(), layers.Dense(4, name="first"), ZeroForNaN(), layers.Dense(2)]
    model = compiled(keras.Sequential([keras.Input((8, 8, 3)), *hidden]), "adam")
    ooodist.distribute(model, steps_per_execution=2)
    message = r"step 3: the gradient of \S*first/kernel of rank 1 is not finite \(loss \d"
    with pytest.raises(ooodist.UserError, match=message):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)


@check
def steps_that_are_not_finite_are_left_out() -> None:
    """On all ranks, where one has such a sample; all is as if there were no such step."""
    step = BATCH * size
    x, y = images(8 * step)
    bad = x.copy()
    bad[(2 * size + 1) * BATCH] = np.nan  # in the third step of rank 1 alone
    bad[5 * step] = np.inf  # in the sixth of rank 0
    left_out = [*range(2 * step, 3 * step), *range(5 * step, 6 * step)]
    without = [np.delete(each, left_out, axis=0) for each in (x, y)]

    def make() -> keras.Model:
        hidden = [layers.Flatten(), layers.Dense(4), layers.BatchNormalization(), layers.ReLU()]
        return keras.Sequential([keras.Input((8, 8, 3)), *hidden, layers.Dense(2)])

    found = []
    for data in ((bad, y), without):
        model = fresh(make, 3)
        compiled(model, keras.optimizers.SGD(0.05, momentum=0.9))
        ooodist.distribute(model, on_nan="skip", steps_per_execution=2, order="first_k", k=1)
        history = model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0).history
        state = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
        found.append([*state, *(np.array(values) for values in history.values())])
        engine.check_equal("the state", b"".join(each.tobytes() for each in state))
        assert model.ooodist.strategy.watch.num_skipped == (2 if data[0] is bad else 0)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@check
def a_step_without_gradients_is_refused() -> None:
    class Silent(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            return {"loss": tf.reduce_mean(self(data[0]))}

    model = compiled(Silent(), "sgd", metrics=None)
    ooodist.distribute(model)
    with pytest.raises(ooodist.UserError, match="drift apart"):
        model.fit(np.ones((BATCH * size, 3)), np.ones(BATCH * size), batch_size=BATCH, verbose=0)
