"""``distribute`` on one process: plain Keras's numbers, and what Keras users expect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.backprop.order import first_k_order
from ooodist.errors import UserError
from tests.training import embeddings

layers = keras.layers


@pytest.fixture(autouse=True)
def _local_engine() -> Iterator[None]:
    ooodist.init("local")
    yield
    keras.backend.clear_session()


def data(count: int = 48) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    return numbers.normal(size=(count, 6, 6, 2)).astype(np.float32), numbers.integers(0, 3, count)


def make(optimizer: Any = None, **options: Any) -> keras.Model:
    """With dropout and batch norm, whose states must be as in plain training too."""
    keras.utils.set_random_seed(1)
    image = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same")(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.25, seed=2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(image, layers.Dense(3)(layers.Dense(8, activation="gelu")(x)))
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"metrics": ["accuracy"], "jit_compile": False, **options},
    )
    return model


def fitted(model: keras.Model, **options: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    x, y = data()
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    history = model.fit(x, y, **options).history
    state = [*model.variables, *model.optimizer.variables]
    return [v.numpy() for v in state], history


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "schedule, decay, norm": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.9), weight_decay=0.1, clipnorm=0.1
    ),
    "averages, global norm": lambda: keras.optimizers.RMSprop(
        1e-3, use_ema=True, ema_overwrite_frequency=3, global_clipnorm=0.5
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2)),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "how",
    [{}, {"order": "first_k", "k": 2, "steps_per_launch": 4}],
    ids=["inorder", "first_k, 4 steps a launch"],
)
def test_the_numbers_are_those_of_plain_keras(name: str, how: dict[str, Any]) -> None:
    plain, plain_history = fitted(make(OPTIMIZERS[name]()))
    model = ooodist.distribute(make(OPTIMIZERS[name]()), **how)
    ours, history = fitted(model)
    assert history == plain_history
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("steps_per_launch", [1, 3])
def test_class_and_sample_weights_and_a_ragged_end(steps_per_launch: int) -> None:
    x, y = data(50)  # 6 batches of 8 and one of 2
    weights = np.linspace(0.1, 2.0, 50).astype(np.float32)
    results = []
    for ours in (False, True):
        model = make()
        if ours:
            ooodist.distribute(model, order="first_k", k=1, steps_per_launch=steps_per_launch)
        for extra in ({"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}, {"sample_weight": weights}):
            model.fit(x, y, 8, 1, 0, shuffle=False, **extra)  # batch_size, epochs, verbose
        results.append([v.numpy() for v in model.variables])
    # With a small last batch Keras traces open shapes (None, ...), for which TensorFlow's last
    # bits differ from those of a trace of shape (8, ...), ours.
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_callbacks_validation_steps_and_early_stopping() -> None:
    x, y = data()
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    model = ooodist.distribute(make(), steps_per_launch=2)
    batches: list[int] = []
    history = model.fit(
        endless,
        epochs=9,
        steps_per_epoch=5,  # not a multiple of the steps a launch
        validation_data=(x, y),
        verbose=0,
        callbacks=[
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=1e3),
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: batches.append(batch)
            ),
        ],
    )
    assert len(history.history["val_accuracy"]) == 2
    assert int(model.optimizer.iterations) == 10  # exactly 5 an epoch
    assert len(batches) == 6  # three launches an epoch, of 2, 2 and 1 steps
    assert set(model.evaluate(x, y, return_dict=True, verbose=0)) == {"accuracy", "loss"}
    assert model.predict(x[:5], verbose=0).shape == (5, 3)


def test_a_generator_a_single_batch_and_fit_again() -> None:
    x, y = data()
    model = ooodist.distribute(make(), order="first_k", k=2)
    model.fit(((x[i : i + 8], y[i : i + 8]) for i in range(0, 48, 8)), verbose=0)
    assert int(model.optimizer.iterations) == 6
    logs = model.train_on_batch(x[:8], y[:8], return_dict=True)
    assert set(logs) == {"accuracy", "loss"}
    fitted(model)  # arrays: the length of an epoch is known
    model.train_on_batch(x[:8], y[:8])
    assert int(model.optimizer.iterations) == 7 + 12 + 1


def test_compile_again_gives_a_new_step() -> None:
    model = ooodist.distribute(make())
    fitted(model)
    model.compile(keras.optimizers.SGD(0.0), model.loss, metrics=["accuracy"])
    before = [v.numpy() for v in model.trainable_variables]
    fitted(model)
    for a, b in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_saving_and_loading_are_keras_own(tmp_path: Path) -> None:
    model = ooodist.distribute(make(), order="first_k", k=1)
    fitted(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, _ = data()
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert type(loaded) is type(model)
    assert not hasattr(loaded, "ooodist")


def test_a_model_that_is_not_built_yet() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Flatten(), layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ooodist.distribute(model, order="first_k", k=1)
    fitted(model)
    assert model.built


def test_eagerly_it_trains_too_and_says_that_there_is_no_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain, _ = fitted(make(run_eagerly=True))
    ours, _ = fitted(ooodist.distribute(make(run_eagerly=True), order="first_k", k=1))
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)
    assert "runs eagerly" in caplog.text


def test_what_was_traced_is_known() -> None:
    model = ooodist.distribute(make(), order="first_k", k=2, steps_per_launch=3)
    fitted(model, epochs=1)
    first, second, third = model.ooodist.backward.steps
    assert first.order == second.order == third.order
    assert [unit.name for unit in first.backward] != list(first.order or ())
    assert sorted(first.order or ()) == sorted(unit.name for unit in first.backward)
    assert first.exchanges == ()  # one process


def test_an_order_of_ones_own() -> None:
    seen: list[list[str]] = []

    def reverse_late(units: Any) -> list[str]:
        order = [u.name for u in units if u.kind == "dX"]
        order += [u.name for u in reversed(units) if u.kind == "dW" and u.variables]
        order[0:0] = []
        early = [u.name for u in units if u.kind == "dW" and not u.variables]
        seen.append(order[: len(order)] + early)
        return [u.name for u in units if u.name in order or u.name in early]

    plain, _ = fitted(make())
    ours, _ = fitted(ooodist.distribute(make(), order=reverse_late))
    assert seen
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "last_k"}, "'last_k'; choose one of inorder, first_k"),
        ({"k": 3}, "k = 3 is for first_k alone"),
        ({"steps_per_launch": 0}, "steps_per_launch is 0; .* at least 1"),
        ({"steps_per_launch": 1.5}, "steps_per_launch is 1.5"),
        ({"accumulate": -1}, "accumulate is -1"),
        ({"credit": 0}, "credit is 0"),
        ({"bucket_bytes": -1}, "bucket_bytes is -1"),
    ],
)
def test_impossible_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ooodist.distribute(make(), **options)


def test_k_beyond_the_model_is_named_when_it_is_known() -> None:
    model = ooodist.distribute(make(), order="first_k", k=99)
    with pytest.raises(UserError, match=r"k = 99, but this model has \d+ layers"):
        fitted(model)


def test_a_model_is_distributed_once() -> None:
    model = ooodist.distribute(make())
    with pytest.raises(UserError, match="was given to ooodist before"):
        ooodist.distribute(model, order="first_k", k=1)
    assert fitted(model)[1]["loss"]


class Adversaries(keras.Model):
    """Two networks, an optimizer and a backward pass for each, and no call."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(1)]
        )
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(5), layers.Dense(4)])
        self.generator_optimizer = keras.optimizers.Adam(1e-2)

    def train_step(self, data: Any) -> Any:
        real, noise = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(self.generator(noise)) - self.critic(real))
        weights = self.critic.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            fooled = -tf.reduce_mean(self.critic(self.generator(noise)))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(fooled, weights), weights)
        return {"critic": loss, "generator": fooled}


def test_two_optimizers_have_the_state_that_plain_keras_gives_them() -> None:
    real, noise = (np.random.default_rng(n).normal(size=(48, n)) for n in (4, 3))

    def trained(**how: Any) -> keras.Model:
        keras.backend.clear_session()  # the same names
        keras.utils.set_random_seed(2)
        model = Adversaries()
        model.compile(
            keras.optimizers.Adam(1e-2, use_ema=True, ema_overwrite_frequency=2), jit_compile=False
        )
        if how:
            ooodist.distribute(model, **how)
        model.fit(real.astype("f"), noise.astype("f"), batch_size=8, shuffle=False, verbose=0)
        return model

    def state(model: keras.Model) -> list[np.ndarray]:
        kept = [*model.optimizer.variables, *model.generator_optimizer.variables]
        return [v.numpy() for v in (*model.variables, *kept)]

    units: dict[str, None] = {}  # of both passes

    def note(pass_units: Any) -> list[str]:
        order = first_k_order(pass_units, 1)
        units.update(dict.fromkeys(order))
        return order

    plain = state(trained())
    for order in (note, units):
        ours = trained(order=order if order is note else list(units), steps_per_launch=2)
        assert all(step.order for step in ours.ooodist.backward.steps)
        for a, b in zip(state(ours), plain, strict=True):
            np.testing.assert_array_equal(a, b)


def test_weights_that_only_a_train_step_makes_are_named() -> None:
    class Late(Adversaries):
        def __init__(self) -> None:
            super().__init__()
            self.critic = keras.Sequential([layers.Dense(1, name="unknown")], name="late")

    model = Late()
    model.compile("sgd")
    ooodist.distribute(model)
    with pytest.raises(UserError, match=r"weights of late, unknown in model .* build\(\)"):
        model.fit(np.ones((8, 4)), np.ones((8, 3)), verbose=0)


class Recomputed(layers.Layer):
    """Gradients that are made with a tape of their own."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.inner = layers.Dense(8, activation="tanh")
        self.by_hand = by_hand

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            def gradient(slope: Any, variables: Any = None) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    again = self.inner(x)
                first, *others = tape.gradient(again, [x, *variables], slope)
                return first, others

            return self.inner(x), gradient

        return run(x) if self.by_hand else tf.recompute_grad(lambda x: self.inner(x))(x)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_tape_inside_a_gradient_is_not_the_steps_own(accumulate: int) -> None:
    def trained(ours: bool) -> keras.Model:
        keras.backend.clear_session()
        keras.utils.set_random_seed(2)
        parts = [Recomputed(by_hand=False), Recomputed(by_hand=True), layers.Dense(3)]
        model = keras.Sequential([keras.Input((6, 6, 2)), layers.Flatten(), *parts])
        model.compile(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=None if ours else accumulate)
            if accumulate > 1
            else keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        if ours:
            ooodist.distribute(model, order="first_k", k=2, accumulate=accumulate)
        fitted(model, epochs=1)
        return model

    plain, ours = trained(False), trained(True)
    (step,) = ours.ooodist.backward.steps
    assert len({name for unit in step.backward for name in unit.variables}) == 6
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6 if accumulate > 1 else 0)


def test_gradients_under_another_tape_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Steep(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            weights = self.trainable_variables
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    loss = self.compute_loss(x, y, self(x, training=True))
                slopes = inner.gradient(loss, weights)
                total = loss + 0.1 * tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])
            self.optimizer.apply(tape.gradient(total, weights), weights)
            return {"total": total}

    def trained(ours: bool) -> keras.Model:
        keras.utils.set_random_seed(2)
        model = Steep([keras.Input((6, 6, 2)), layers.Flatten(), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
        if ours:
            ooodist.distribute(model)
        fitted(model)
        return model

    ours, plain = trained(True), trained(False)
    assert len(ours.ooodist.backward.steps) == 1
    assert "while another tape records" in caplog.text
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_accumulation_needs_keras_own_train_step() -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    model = Own([layers.Flatten(), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ooodist.distribute(model, accumulate=2)
    with pytest.raises(UserError, match="Own has a train_step of its own"):
        fitted(model)


def trained_on_sequences(name: str, kind: type, **options: Any) -> list[np.ndarray]:
    x, y = embeddings.sequences(32)
    model = embeddings.language_model(embeddings.OPTIMIZERS[name](), kind)
    if options:
        ooodist.distribute(model, **options)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return list(model.get_weights())


def difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", embeddings.OPTIMIZERS)
def test_rows_of_an_embedding_are_summed_where_workers_are_to_agree(name: str) -> None:
    how = {"order": "first_k", "k": 1, "steps_per_launch": 2}
    ours = trained_on_sequences(name, layers.Embedding, sum_rows=True, **how)
    assert difference(ours, trained_on_sequences(name, embeddings.DenseEmbedding)) < 1e-5


def test_left_to_itself_one_process_has_the_numbers_of_keras() -> None:
    plain = trained_on_sequences("adam", layers.Embedding)
    assert difference(trained_on_sequences("adam", layers.Embedding, order="inorder"), plain) == 0
    summed = trained_on_sequences("adam", layers.Embedding, sum_rows=True)
    assert difference(summed, plain) > 1e-4


def test_workers_cannot_but_sum_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ooodist.engines.current(), "size", 2)
    with pytest.raises(UserError, match="sum_rows is False, but 2 workers add up their rows"):
        ooodist.distribute(make(), sum_rows=False)


class ZeroForNaN(layers.Layer):
    """As TensorFlow's fused Relu does on some processors: the loss stays finite."""

    def call(self, x: Any) -> Any:
        return keras.ops.where(keras.ops.isfinite(x), x, 0.0)


def forgiving(optimizer: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    names = [layers.Flatten(), layers.Dense(4, name="first"), ZeroForNaN(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((6, 6, 2)), *names])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False, **options)
    return model


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["traced", "eager"])
@pytest.mark.parametrize("steps_per_launch", [1, 4])
def test_a_gradient_that_is_not_finite_ends_the_training(
    options: dict[str, Any], steps_per_launch: int
) -> None:
    x, y = data()
    x[17] = np.nan  # of the third batch
    plain = forgiving("adam", **options)
    assert np.isfinite(plain.fit(x, y, 8, shuffle=False, verbose=0).history["loss"]).all()
    assert np.isnan(plain.get_weights()[0]).any()  # and nobody has seen it
    model = ooodist.distribute(forgiving("adam", **options), steps_per_launch=steps_per_launch)
    when = "step 3" if steps_per_launch == 1 else "steps 1 to 4"
    message = rf"^{when}: weight sequential\w*/first/kernel is no longer finite \(loss \d\."
    with pytest.raises(UserError, match=message):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    healthy = ooodist.distribute(forgiving("adam", **options), steps_per_launch=steps_per_launch)
    healthy.fit(x[:16], y[:16], batch_size=8, shuffle=False, verbose=0)
    with pytest.raises(UserError, match=r"^step 3: weight \S+/kernel is no longer finite"):
        healthy.train_on_batch(x[16:24], y[16:24])


def test_an_overflow_where_the_loss_is_scaled_is_left_to_the_optimizer() -> None:
    x, y = data()
    x[17] = np.nan
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model = ooodist.distribute(forgiving(scaled))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert int(scaled.iterations) == 5  # one of the six was left out
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_weights_that_are_not_finite_end_the_training_before_callbacks_save_them() -> None:
    """Where the loss is scaled, nobody looks at each step."""
    x, y = data(16)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(np.inf))
    model = ooodist.distribute(forgiving(scaled))
    called: list[int] = []
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: called.append(epoch))
    with pytest.raises(UserError, match=r"weight \S+/kernel is not finite at \d+ of 288"):
        model.fit(x, y, batch_size=16, verbose=0, callbacks=[record])
    assert not called


def test_batches_that_do_not_fill_an_update_are_named(caplog: pytest.LogCaptureFixture) -> None:
    x, y = data()
    model = ooodist.distribute(make(), accumulate=2)
    with caplog.at_level("WARNING", logger="ooodist"):
        model.fit(((x[i : i + 8], y[i : i + 8]) for i in range(0, 24, 8)), verbose=0)
    assert int(model.optimizer.iterations) == 1
    assert "ends with 1 batches, which do not make an update of 2" in caplog.text
    with pytest.raises(UserError, match="train_on_batch gives one batch, but accumulate is 2"):
        model.train_on_batch(x[:8], y[:8])


def test_accumulated_gradients_overflow_where_those_of_the_whole_batch_do() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 6)), np.zeros(40)
    found = []
    for accumulate in (1, 4):
        keras.utils.set_random_seed(1)
        dense = layers.Dense(3, dtype="mixed_float16")
        model = keras.Sequential([keras.Input((6,)), dense])
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1e-3), initial_scale=2.0**24
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(scaled, loss, jit_compile=False)
        if accumulate > 1:
            ooodist.distribute(model, accumulate=accumulate)
        model.fit(x, y, batch_size=4 // accumulate, epochs=2, shuffle=False, verbose=0)
        found.append((int(scaled.iterations), float(scaled.dynamic_scale)))
        assert found[-1][0] < 20  # some were skipped
    assert found[0] == found[1]
