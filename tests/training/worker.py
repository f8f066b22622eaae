"""One worker of the job in test_distributed.py: checks, each on all ranks together.

Usage: worker.py NAME...   (names of functions below; `all` for every one)
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooodist

engine = ooodist.init()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.python.framework import config  # noqa: E402

from ooodist.profile.exchange_timing import ExchangeTimer  # noqa: E402
from ooodist.training import replicas  # noqa: E402
from tests.training import embeddings  # noqa: E402
from tests.training.test_metric_states import Peak  # noqa: E402
from tests.workers import check, images, run  # noqa: E402

layers = keras.layers
rank, size = ooodist.rank(), ooodist.size()
BATCH = 4


class Recomputed(layers.Conv2D):
    """Its activation is computed again in the backward pass."""

    def call(self, x: Any) -> Any:
        return tf.recompute_grad(super().call)(x)


def convolutional(frozen_norm: bool = True, recompute: bool = False) -> keras.Model:
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    norm = layers.BatchNormalization()
    norm.trainable = not frozen_norm
    kind = Recomputed if recompute else layers.Conv2D
    y = kind(8, 3, padding="same")(norm(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(image, layers.Dense(2)(x))


def linear() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(2)])


def compiled(model: keras.Model, optimizer: Any, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"metrics": ["accuracy"], **options}
    model.compile(optimizer, loss, jit_compile=False, **options)
    return model


def fresh(make: Callable[[], keras.Model], seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return make()


def values(model: keras.Model) -> list[np.ndarray]:
    return [v.numpy() for v in model.trainable_variables]


def assert_equal_ranks(model: keras.Model) -> None:
    engine.check_equal("weights", b"".join(w.tobytes() for w in values(model)))


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], relative: float = 1e-6) -> None:
    """Over all weights together, in the Euclidean norm."""
    far = np.sqrt(sum(float(np.sum((a - b) ** 2.0)) for a, b in zip(ours, theirs, strict=True)))
    scale = np.sqrt(sum(float(np.sum(b**2.0)) for b in theirs))
    assert far <= relative * scale, f"relative difference {far / scale:.2e} > {relative:.0e}"


def trained_like_one_process(
    make: Callable[[], keras.Model], optimizer: Callable[[], Any], **options: Any
) -> None:
    """20 steps here against 20 steps of plain Keras on the concatenated batches."""
    tolerance = options.pop("tolerance", 1e-6)
    accumulate = options.get("accumulate", 1)
    x, y = images(20 * BATCH * size * accumulate)
    ours = compiled(fresh(make, 100 + rank), optimizer())  # other weights on each rank
    ooodist.distribute(ours, **options)
    history = ours.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    assert_equal_ranks(ours)
    alone = compiled(fresh(make, 100), optimizer())
    plain = alone.fit(x, y, batch_size=BATCH * size * accumulate, shuffle=False, verbose=0).history
    assert len(ours.ooodist.backward.steps) >= 1
    assert int(ours.optimizer.iterations) == 20
    assert_close(values(ours), values(alone), tolerance)
    for name in plain:
        np.testing.assert_allclose(history[name], plain[name], rtol=10 * tolerance)


@check
def sgd_momentum() -> None:
    trained_like_one_process(convolutional, lambda: keras.optimizers.SGD(0.05, momentum=0.9))


@check
def adam_with_schedule_clipping_and_decay() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 40)
    trained_like_one_process(
        convolutional,
        lambda: keras.optimizers.AdamW(
            schedule, weight_decay=0.01, global_clipnorm=1.0, use_ema=True, epsilon=1e-3
        ),
        order="first_k",
        k=2,
    )


@check
def several_steps_a_launch() -> None:
    trained_like_one_process(
        convolutional,
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5),
        order="first_k",
        k=3,
        steps_per_launch=3,  # 20 = 6 launches of 3 steps, and 2 steps
        credit=1,
        bucket_bytes=0,
    )


@check
def accumulated_batches() -> None:
    trained_like_one_process(
        convolutional,
        lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        order="first_k",
        k=1,
        accumulate=2,
        steps_per_launch=2,
    )


@check
def embeddings_and_tied_weights() -> None:
    from tests.backprop.models import tied_and_shared_weights

    def make() -> keras.Model:
        return tied_and_shared_weights()[0]

    tokens = np.random.default_rng(5).integers(0, 11, (10 * BATCH * size, 6)).astype(np.int32)
    labels = tokens[:, 0]
    ours = compiled(fresh(make, 7 + rank), keras.optimizers.SGD(0.1))
    ooodist.distribute(ours, order="first_k", k=2, steps_per_launch=2)
    ours.fit(tokens, labels, batch_size=BATCH, shuffle=False, verbose=0)
    assert_equal_ranks(ours)
    alone = compiled(fresh(make, 7), keras.optimizers.SGD(0.1))
    alone.fit(tokens, labels, batch_size=BATCH * size, shuffle=False, verbose=0)
    assert_close(values(ours), values(alone))


@check
def rows_of_an_embedding_are_summed_for_each_optimizer() -> None:
    x, y = embeddings.sequences(5 * BATCH * size)
    for name, optimizer in embeddings.OPTIMIZERS.items():
        ours = embeddings.language_model(optimizer(), seed=7 + rank)
        ooodist.distribute(ours)
        ours.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        assert_equal_ranks(ours)
        alone = embeddings.language_model(optimizer(), embeddings.DenseEmbedding, seed=7)
        alone.fit(x, y, batch_size=BATCH * size, shuffle=False, verbose=0)
        far = max(np.abs(a - b).max() for a, b in zip(values(ours), values(alone), strict=True))
        assert far < 1e-5, f"{name}: {far:.1e}"


def of_tokens(loss: Any, mask_zero: bool) -> keras.Model:
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(5, 4, mask_zero=mask_zero)(tokens)
    model = keras.Model(tokens, layers.Dense(5)(layers.Dense(8, activation="relu")(x)))
    model.compile(keras.optimizers.SGD(0.02), loss, jit_compile=False)
    return model


@check
def losses_over_masked_tokens_are_those_of_the_whole_batch() -> None:
    kind = keras.losses.SparseCategoricalCrossentropy
    numbers = np.random.default_rng(11)
    x = numbers.integers(1, 5, (6 * BATCH * size, 6)).astype(np.int32)
    lengths = numbers.integers(0, 7, len(x))  # some sequences are empty
    x[np.arange(6) >= lengths[:, None]] = 0
    y = (x + 1) % 5
    weights = numbers.uniform(0.5, 2, x.shape)
    for loss, mask_zero, sample_weight in (
        (kind(from_logits=True), True, None),
        (kind(from_logits=True), True, weights),
        (kind(from_logits=True, ignore_class=1), False, None),
        (kind(from_logits=True, ignore_class=3), True, None),
        (kind(from_logits=True, reduction="sum"), False, None),
    ):
        ours = fresh(lambda: of_tokens(loss, mask_zero), 7 + rank)  # noqa: B023
        ooodist.distribute(ours, order="first_k", k=1, steps_per_launch=2)
        how = {"shuffle": False, "verbose": 0, "sample_weight": sample_weight}
        history = ours.fit(x, y, batch_size=BATCH, **how).history["loss"]
        assert_equal_ranks(ours)
        alone = fresh(lambda: of_tokens(loss, mask_zero), 7)  # noqa: B023
        plain = alone.fit(x, y, batch_size=BATCH * size, **how).history["loss"]
        assert_close(values(ours), values(alone), 1e-5)
        np.testing.assert_allclose(history, plain, rtol=1e-4)


@check
def synchronized_batch_norm() -> None:
    def make() -> keras.Model:
        image = keras.Input((8, 8, 3))
        x = layers.BatchNormalization(synchronized=True)(layers.Conv2D(8, 3)(image))
        shared = layers.BatchNormalization(axis=1, synchronized=True)
        x = shared(layers.ReLU()(shared(x)))
        return keras.Model(image, layers.Dense(2)(layers.Flatten()(x)))

    made = []

    def noted() -> keras.Model:
        made.append(make())
        return made[-1]

    trained_like_one_process(
        noted,
        lambda: keras.optimizers.SGD(0.01, momentum=0.9),
        order="first_k",
        k=1,
        steps_per_launch=2,
        tolerance=1e-5,  # moments are taken of sums of squares
    )
    ours, alone = made
    for a, b in zip(ours.non_trainable_variables, alone.non_trainable_variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


class Merged(Peak):
    def merge_state(self, metrics: Any) -> None:
        self.peak.assign(max(float(metric.peak) for metric in [self, *metrics]))


@check
def a_maximum_is_merged_or_refused() -> None:
    x, y = images(2 * BATCH * size)
    x *= 10
    model = compiled(fresh(convolutional, 5), "sgd", metrics=[Merged(), "accuracy"])
    ooodist.distribute(model)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    whole = np.abs(model.predict(x, verbose=0)).max()
    found = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["peak"], whole, rtol=1e-5)
    for method in ("fit", "evaluate"):
        model = compiled(fresh(convolutional, 5), "sgd", metrics=[Peak()])
        ooodist.distribute(model)
        with pytest.raises(ooodist.UserError, match="does not add to its variable highest"):
            getattr(model, method)(x, y, batch_size=BATCH, verbose=0)


@check
def frozen_weights_are_not_sent() -> None:
    norm = layers.BatchNormalization()
    model = keras.Sequential([keras.Input((500,)), layers.Dense(500, trainable=False), norm])
    replicas.broadcast_weights(engine, model)
    norm.moving_mean.assign(np.full(500, rank, np.float32))
    sent: list[int] = []
    plain = engine._sum_array
    engine._sum_array = lambda array: sent.append(array.size) or plain(array)  # type: ignore
    try:
        replicas.average_statistics(engine, model)
    finally:
        del engine._sum_array
    np.testing.assert_array_equal(norm.moving_mean.numpy(), np.full(500, (size - 1) / 2))
    assert sent == [4 * size, 500]  # a checksum of each, and the only one that differs


@check
def with_op_determinism() -> None:
    config.enable_op_determinism()
    try:
        trained_like_one_process(
            lambda: convolutional(recompute=True),
            lambda: keras.optimizers.SGD(0.05, momentum=0.9),
            order="first_k",
            k=2,
            steps_per_launch=2,
        )
        assert ExchangeTimer(engine, None).together(4096, 2) > 0  # what plans are made from
    finally:
        config.disable_op_determinism()


@check
def mixed_precision() -> None:
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.config.set_dtype_policy(policy)
        try:
            model = compiled(fresh(convolutional, rank), keras.optimizers.SGD(0.05))
        finally:
            keras.config.set_dtype_policy("float32")
        ooodist.distribute(model, order="first_k", k=2, steps_per_launch=2)
        x, y = images(6 * BATCH * size)
        history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0).history
        assert_equal_ranks(model)
        assert history["loss"][-1] < history["loss"][0]


@check
def own_train_step_with_two_optimizers() -> None:
    class Twice(keras.Model):
        """Two parts, a tape and an optimiser for each, and a gradient penalty."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(8, activation="relu"), layers.Dense(2)
            self.first_optimizer = keras.optimizers.SGD(0.1)

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = self.compute_loss(x, y, self(x, training=True))
                penalty = tf.reduce_mean(tf.square(inner.gradient(loss, x)))
                total = loss + 0.1 * penalty
            for part, optimizer in (
                (self.first, self.first_optimizer),
                (self.second, self.optimizer),
            ):
                weights = part.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
            return {"total": total}

    x = np.random.default_rng(1).normal(size=(12 * BATCH * size, 5)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    ours = compiled(fresh(Twice, 3 + rank), keras.optimizers.SGD(0.2, momentum=0.5), metrics=None)
    ooodist.distribute(ours, steps_per_launch=2)
    logs = ours.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, epochs=2).history
    assert_equal_ranks(ours)
    alone = compiled(fresh(Twice, 3), keras.optimizers.SGD(0.2, momentum=0.5), metrics=None)
    alone.fit(x, y, batch_size=BATCH * size, shuffle=False, verbose=0, epochs=2)
    engine.check_equal("logs", str(logs))
    # The penalty squares each worker's mean, so batches are not quite additive here.
    assert_close(values(ours), values(alone), relative=0.05)


@check
def two_models_with_weights_of_the_same_names() -> None:
    for width in (3, 5):
        layer = [keras.Input((4,)), layers.Dense(width, name="same"), layers.Dense(2, name="last")]
        model = compiled(keras.Sequential(layer, name="model"), "sgd")
        ooodist.distribute(model, bucket_bytes=0)
        x = np.random.default_rng(rank).normal(size=(4 * size, 4)).astype(np.float32)
        model.fit(x, np.zeros(4 * size), batch_size=4, verbose=0)
        assert_equal_ranks(model)


@check
def orders_and_buckets_and_credit() -> None:
    x, y = images(4 * BATCH * size)
    results = []
    for options in (
        {"order": "first_k", "k": 2, "credit": 1, "bucket_bytes": 0},
        {"order": "first_k", "k": 2, "bucket_bytes": 300},
        {"order": "inorder", "credit": 3, "bucket_bytes": 1 << 30},
    ):
        model = compiled(fresh(convolutional, 5), keras.optimizers.SGD(0.05))
        ooodist.distribute(model, **options)
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        results.append(values(model))
        step = model.ooodist.backward.steps[0]
        carried = [len(exchange.weights) for exchange in step.exchanges]
        limit = options["bucket_bytes"]
        for exchange in step.exchanges:
            assert len(exchange.weights) == 1 or exchange.num_bytes <= limit
        assert sum(carried) == len(model.trainable_variables)
        assert (len(carried) == 1) == (limit == 1 << 30)
        # Gradients travel as they become ready.
        completed = [unit for unit in step.backward if unit.variables]
        if step.order:
            completed.sort(key=lambda unit: step.order.index(unit.name))
        sent = [name for exchange in step.exchanges for name in exchange.weights]
        assert sent == [name for unit in completed for name in unit.variables]
    if size == 2:  # with more, the order of an addition depends on the place in a bucket
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


@check
def a_trained_variable_that_is_no_part_of_the_model() -> None:
    class Scaled(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, temperature * self(x, training=True))
            weights = self.trainable_variables
            *gradients, slope, of_input = tape.gradient(loss, [*weights, temperature, x])
            assert of_input is None  # not watched: tensors are none of our business
            temperature.assign_sub(0.1 * slope)
            self.optimizer.apply(gradients, weights)
            return {"loss": loss}

    temperature = tf.Variable(1.0)
    x = np.random.default_rng(1).normal(size=(6 * BATCH * size, 5)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    model = compiled(
        fresh(lambda: Scaled([keras.Input((5,)), layers.Dense(2)]), rank), "sgd", metrics=None
    )
    ooodist.distribute(model).fit(x, y, batch_size=BATCH, verbose=0)
    assert_equal_ranks(model)
    engine.check_equal("temperature", temperature.numpy().tobytes())
    assert temperature.numpy() != 1.0


@check
def tape_in_a_loop_of_ones_own() -> None:
    x, y = images(12 * BATCH * size)
    ours, alone = fresh(convolutional, 50 + rank), fresh(convolutional, 50)
    optimizer, other = keras.optimizers.Adam(1e-3, epsilon=1e-3), None
    optimizer.build(ours.trainable_variables)
    ooodist.broadcast(ours.variables)

    def loss_of(model: keras.Model, first: int, count: int) -> tf.Tensor:
        logits = model(x[first : first + count], training=True)
        labels = y[first : first + count]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    @tf.function(autograph=False)
    def steps() -> None:
        for step in range(12):
            with tf.GradientTape() as tape:
                loss = loss_of(ours, (step * size + rank) * BATCH, BATCH)
            tape = ooodist.DistributedGradientTape(tape, order="first_k", k=2, credit=2)
            gradients = tape.gradient(loss, ours.trainable_variables)
            ooodist.apply(optimizer, gradients, ours.trainable_variables)

    steps()
    assert_equal_ranks(ours)
    other = keras.optimizers.Adam(1e-3, epsilon=1e-3)
    for step in range(12):
        with tf.GradientTape() as tape:
            loss = loss_of(alone, step * size * BATCH, BATCH * size)
        weights = alone.trainable_variables
        other.apply(tape.gradient(loss, weights), weights)
    assert_close(values(ours), values(alone))

    with ooodist.DistributedGradientTape() as eager:  # eagerly, and recording by itself
        loss = loss_of(ours, rank * BATCH, BATCH)
    ours_now = eager.gradient(loss, ours.trainable_variables)
    with tf.GradientTape() as tape:
        loss = loss_of(ours, 0, BATCH * size)
    for a, b in zip(ours_now, tape.gradient(loss, ours.trainable_variables), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


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
        model = compiled(fresh(convolutional, 4), keras.optimizers.SGD(0.05))
        ooodist.distribute(model, steps_per_launch=2)
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
    ooodist.distribute(model, steps_per_launch=2)
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

        model = compiled(fresh(convolutional, seed + rank), keras.optimizers.Adam(1e-3))
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
    ooodist.distribute(model, steps_per_launch=2)
    message = r"step 3: the gradient of \S*first/kernel of rank 1 is not finite \(loss \d"
    with pytest.raises(ooodist.UserError, match=message):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)


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


if __name__ == "__main__":
    run(engine, sys.argv[1:])
