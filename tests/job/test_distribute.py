"""``distribute`` on one process: plain Keras's numbers, and what Keras users expect."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import Plan
from tests.job import embeddings

pytestmark = pytest.mark.usefixtures("local_engine")
layers = keras.layers


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


HOW: dict[str, dict[str, Any]] = {
    "inorder": {},
    "first_k": {"order": "first_k", "k": 2},
    "2 steps": {"order": "first_k", "k": 2, "steps_per_execution": 2},
    "4 steps": {"order": "first_k", "k": 2, "steps_per_execution": 4},  # of 6
}


@functools.cache
def plain(name: str) -> tuple[list[np.ndarray], dict[str, Any]]:
    """What Keras trains."""
    model = make(OPTIMIZERS[name]())
    model.optimizer.build(model.trainable_variables)  # else Keras traces its step twice
    return fitted(model)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("momentum", "inorder"),
        ("momentum", "first_k"),
        ("schedule, decay, norm", "2 steps"),
        ("averages, global norm", "2 steps"),
        ("loss scale", "inorder"),
        ("loss scale", "4 steps"),
        ("accumulation", "2 steps"),
    ],
)
def test_the_numbers_are_those_of_plain_keras(name: str, how: str) -> None:
    expected, expected_history = plain(name)
    ours, history = fitted(ooodist.distribute(make(OPTIMIZERS[name]()), **HOW[how]))
    assert history == expected_history
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_class_and_sample_weights_and_a_ragged_end() -> None:
    x, y = data(50)  # 6 batches of 8 and one of 2
    weights = np.linspace(0.1, 2.0, 50).astype(np.float32)
    results = []
    for ours in (False, True):
        model = make()
        if ours:
            ooodist.distribute(model, order="first_k", k=1, steps_per_execution=3)
        for extra in ({"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}, {"sample_weight": weights}):
            model.fit(x, y, 8, 1, 0, shuffle=False, **extra)  # batch_size, epochs, verbose
        results.append([v.numpy() for v in model.variables])
    # With a small last batch Keras traces open shapes (None, ...), and so do we: TensorFlow's last
    # bits differ from those of a trace of shape (8, ...).
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_callbacks_validation_steps_and_early_stopping() -> None:
    x, y = data()
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    model = ooodist.distribute(make(), steps_per_execution=2)
    batches: list[int] = []
    history = model.fit(
        endless,
        epochs=9,
        steps_per_epoch=5,  # not a multiple of the steps per execution
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
    expected, _ = fitted(make(run_eagerly=True))
    ours, _ = fitted(ooodist.distribute(make(run_eagerly=True), order="first_k", k=1))
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert "runs eagerly" in caplog.text


def test_what_was_traced_is_known() -> None:
    model = ooodist.distribute(make(), order="first_k", k=2, steps_per_execution=3)
    fitted(model, epochs=1)
    first, second, third = model.ooodist.strategy.inner.backward.steps
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

    expected, _ = plain("momentum")
    optimizer = OPTIMIZERS["momentum"]()
    ours, _ = fitted(ooodist.distribute(make(optimizer), order=reverse_late))
    assert seen
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "firstk"}, "'firstk'; it must be one of inorder, first_k, priority, planned, a"),
        ({"k": 3}, "k = 3 is for first_k alone"),
        ({"steps_per_execution": 0}, "steps_per_execution is 0; .* 1 to 128"),
        ({"steps_per_execution": 1.5}, "steps_per_execution is 1.5"),
        ({"accumulate": -1}, "accumulate is -1"),
        ({"credit": 0}, "credit is 0"),
        ({"bucket_bytes": -1}, "bucket_bytes is -1"),
        ({"wire": "int8"}, "wire is int8; it must be one of float32, float16, bfloat16, planned"),
        ({"wire": "planned"}, "wire is planned, but the order is inorder"),
        ({"error_feedback": False}, "but wire is float32: nothing is lost"),
        ({"order": Plan("x", None, ()), "wire": "float16"}, "wire is float16, but the order is a"),
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
    else:
        model.optimizer.build(model.trainable_variables)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return list(model.get_weights())


def difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", embeddings.OPTIMIZERS)
def test_rows_of_an_embedding_are_summed_where_workers_are_to_agree(name: str) -> None:
    how = {"order": "first_k", "k": 1, "steps_per_execution": 2 if name == "adam" else 1}
    ours = trained_on_sequences(name, layers.Embedding, sum_rows=True, **how)
    assert difference(ours, trained_on_sequences(name, embeddings.DenseEmbedding)) < 1e-5


def test_left_to_itself_one_process_has_the_numbers_of_keras() -> None:
    expected = trained_on_sequences("adam", layers.Embedding)
    ours = trained_on_sequences("adam", layers.Embedding, order="inorder")
    assert difference(ours, expected) == 0
    summed = trained_on_sequences("adam", layers.Embedding, sum_rows=True)
    assert difference(summed, expected) > 1e-4


def test_workers_cannot_but_sum_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ooodist.engines.current(), "size", 2)
    with pytest.raises(UserError, match="sum_rows is False, but 2 workers add up their rows"):
        ooodist.distribute(make(), sum_rows=False)


def test_batches_that_do_not_fill_an_update_are_named(caplog: pytest.LogCaptureFixture) -> None:
    x, y = data()
    model = ooodist.distribute(make(), accumulate=2)
    with caplog.at_level("WARNING", logger="ooodist"):
        model.fit(((x[i : i + 8], y[i : i + 8]) for i in range(0, 24, 8)), verbose=0)
    assert int(model.optimizer.iterations) == 1
    assert "ends with 1 batches, which do not make an update of 2" in caplog.text
    assert "XLA" not in caplog.text  # nobody has asked for it
    with pytest.raises(UserError, match="train_on_batch gives one batch, but accumulate is 2"):
        model.train_on_batch(x[:8], y[:8])


def test_who_asks_for_xla_and_an_order_is_told_that_there_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = data()
    for asked in (True, "auto"):
        caplog.clear()
        model = make(jit_compile=asked)
        said = model.jit_compile  # "auto" is True on accelerators
        assert asked == "auto" or said == asked
        model = ooodist.distribute(model, order="first_k", k=1)
        with caplog.at_level("WARNING", logger="ooodist"):
            model.fit(x[:8], y[:8], verbose=0)
        assert ("the training step is not compiled with XLA" in caplog.text) == said


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
