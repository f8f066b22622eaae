"""Checks on all ranks together: what is trained is what one process trains on all the data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import ooodist
from ooodist.errors import UserError
from ooodist.profiler.exchange_timing import ExchangeTimer
from ooodist.settings.sections import PlanningConfig
from ooodist.step import replicas
from tests.job import embeddings
from tests.job.trained import (
    BATCH,
    assert_close,
    assert_equal_ranks,
    built,
    compiled,
    convolutional,
    engine,
    fresh,
    linear,
    rank,
    size,
    trained_like_one_process,
    values,
)
from tests.step.test_metric_states import Peak
from tests.workers import check, images

layers = keras.layers


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
        steps_per_execution=3,  # 20 = 6 launches of 3 steps, and 2 steps
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
        steps_per_execution=2,
    )


@check
def embeddings_and_tied_weights() -> None:
    from tests.graph.models import tied_and_shared_weights

    def make() -> keras.Model:
        return tied_and_shared_weights()[0]

    tokens = np.random.default_rng(5).integers(0, 11, (10 * BATCH * size, 6)).astype(np.int32)
    labels = tokens[:, 0]
    ours = compiled(fresh(make, 7 + rank), keras.optimizers.SGD(0.1))
    ooodist.distribute(ours, order="first_k", k=2, steps_per_execution=2)
    ours.fit(tokens, labels, batch_size=BATCH, shuffle=False, verbose=0)
    assert_equal_ranks(ours)
    if rank:
        return
    alone = built(compiled(fresh(make, 7), keras.optimizers.SGD(0.1)))
    alone.fit(tokens, labels, batch_size=BATCH * size, shuffle=False, verbose=0)
    assert_close(values(ours), values(alone))


@check
def rows_of_an_embedding_are_summed_for_each_optimizer() -> None:
    x, y = embeddings.sequences(5 * BATCH * size)
    for name in ("adam", "global_clipnorm"):  # test_distribute.py has all
        optimizer = embeddings.OPTIMIZERS[name]
        ours = embeddings.language_model(optimizer(), seed=7 + rank)
        ooodist.distribute(ours)
        ours.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        assert_equal_ranks(ours)
        if rank:
            continue
        alone = built(embeddings.language_model(optimizer(), embeddings.DenseEmbedding, seed=7))
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
def steps_that_xla_compiles() -> None:
    for options in ({}, {"steps_per_execution": 2, "wire": "float16"}):
        narrow = {"tolerance": 1e-2} if options else {}
        trained_like_one_process(
            convolutional,
            lambda: keras.optimizers.AdamW(1e-3, global_clipnorm=1.0, epsilon=1e-3),
            jit_compile=True,
            **options,
            **narrow,
        )
    x, y = embeddings.sequences(4 * BATCH * size)
    ours = embeddings.language_model(keras.optimizers.Adam(0.01), seed=7)
    ooodist.distribute(ours, jit_compile=True)
    ours.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    plain = embeddings.language_model(keras.optimizers.Adam(0.01), seed=7)
    ooodist.distribute(plain)
    plain.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_equal_ranks(ours)
    assert_close(values(ours), values(plain), 1e-5)


@check
def both_ways_are_tried_and_all_ranks_keep_the_same() -> None:
    x, y = images(180 * BATCH * size)
    planning = PlanningConfig(share=1e9)
    model = compiled(fresh(linear, 100 + rank), keras.optimizers.SGD(0.05))
    ooodist.distribute(model, jit_compile="auto", planning=planning)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert not model.ooodist.strategy.is_trying
    assert_equal_ranks(model)
    # A loss over masked tokens exchanges their number, which XLA cannot compile.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    tokens = np.random.default_rng(11).integers(0, 5, (180 * BATCH * size, 6)).astype(np.int32)
    masked = [fresh(lambda: of_tokens(loss, True), 7) for _ in range(2)]
    ooodist.distribute(masked[0], jit_compile="auto", planning=planning)
    ooodist.distribute(masked[1])
    for each in masked:
        each.fit(tokens, tokens, batch_size=BATCH, shuffle=False, verbose=0)
    assert not masked[0].ooodist.strategy.is_trying
    assert_close(values(masked[0]), values(masked[1]))
    for order in ("inorder", "planned"):  # ranks that compile and others would wait for each other
        model = fresh(linear, 100)
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=rank == 0)
        ooodist.distribute(model, order=order)
        with pytest.raises(UserError, match=r"the arguments of ooodist\.distribute"):
            model.fit(x[:64], y[:64], batch_size=BATCH, verbose=0)


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
        steps = 1 if sample_weight is None else 2
        ooodist.distribute(ours, order="first_k", k=1, steps_per_execution=steps)
        how = {"shuffle": False, "verbose": 0, "sample_weight": sample_weight}
        history = ours.fit(x, y, batch_size=BATCH, **how).history["loss"]
        assert_equal_ranks(ours)
        engine.check_equal("history", str(history))
        if rank:
            continue
        alone = built(fresh(lambda: of_tokens(loss, mask_zero), 7))  # noqa: B023
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
        steps_per_execution=2,
        tolerance=1e-5,  # moments are taken of sums of squares
    )
    ours, *alone = ([v.numpy() for v in each.non_trainable_variables] for each in made)
    engine.check_equal("statistics", b"".join(value.tobytes() for value in ours))
    for expected in alone:  # on rank 0
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


class Compared(layers.Layer):
    """Compares each sample with those of all workers, as a contrastive loss does."""

    def __init__(self, gathers: bool) -> None:
        super().__init__()
        self._gathers = gathers

    def call(self, x: Any) -> Any:
        mean, every = tf.reduce_mean(x, axis=0), x
        if self._gathers:
            mean, every = ooodist.allreduce(mean), ooodist.allgather(x)
        alike = tf.nn.softmax(tf.matmul(x, every, transpose_b=True))
        return tf.matmul(alike, every) - mean


@check
def samples_of_all_workers_in_one_loss() -> None:
    made = []

    def make() -> keras.Model:
        made.append(None)
        image = keras.Input((8, 8, 3))
        x = layers.Dense(4)(layers.Flatten()(image))
        x = layers.Dense(4)(Compared(gathers=len(made) == 1)(x))  # the second one is alone
        return keras.Model(image, layers.Dense(2)(x))

    trained_like_one_process(
        make, lambda: keras.optimizers.SGD(0.05, momentum=0.9), order="first_k", k=1, tolerance=1e-5
    )


class Merged(Peak):
    def merge_state(self, metrics: Any) -> None:
        self.peak.assign(max(float(metric.peak) for metric in [self, *metrics]))


@check
def a_maximum_is_merged_or_refused() -> None:
    x, y = images(2 * BATCH * size)
    x *= 10
    model = compiled(fresh(linear, 5), "sgd", metrics=[Merged(), "accuracy"])
    ooodist.distribute(model)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    whole = np.abs(model.predict(x, verbose=0)).max()
    found = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["peak"], whole, rtol=1e-5)
    for method in ("fit", "evaluate"):
        model = compiled(fresh(linear, 5), "sgd", metrics=[Peak()])
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
            steps_per_execution=2,
        )
        assert ExchangeTimer(engine, None).in_flight(4096, 2) > 0  # what plans are made from
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
        ooodist.distribute(model, order="first_k", k=2, steps_per_execution=2)
        x, y = images(6 * BATCH * size)
        history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0).history
        assert_equal_ranks(model)
        assert history["loss"][-1] < history["loss"][0]


@check
def own_train_step_with_two_optimizers() -> None:
    class Twice(keras.Model):
        """Two parts, a tape and an optimizer for each, and a gradient penalty."""

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
    ooodist.distribute(ours, steps_per_execution=2)
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
        step = model.ooodist.strategy.inner.backward.steps[0]
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
    steps_taken = 2
    x, y = images(steps_taken * BATCH * size)
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
        for step in range(steps_taken):
            with tf.GradientTape() as tape:
                loss = loss_of(ours, (step * size + rank) * BATCH, BATCH)
            tape = ooodist.DistributedGradientTape(tape, order="first_k", k=2, credit=2)
            gradients = tape.gradient(loss, ours.trainable_variables)
            ooodist.apply(optimizer, gradients, ours.trainable_variables)

    steps()
    assert_equal_ranks(ours)
    other = keras.optimizers.Adam(1e-3, epsilon=1e-3)
    for step in range(steps_taken):
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
