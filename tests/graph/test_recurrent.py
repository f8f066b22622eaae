"""Weight gradients of recurrent layers behind their loop: the same but for rounding, and dW."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.graph.recurrent import _FORMULAS, put_recurrent_gradients_after_loop
from ooodist.graph.units import Unit, find_backward_units
from tests.thorough import few

layers = keras.layers
BATCH, TIME, INPUTS, UNITS = 3, 7, 5, 6
Build = Callable[[], keras.Model]

# Of the lower and of the upper layer.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dropout, then no bias and relu": (
        {"dropout": 0.4, "seed": 3},
        {"use_bias": False, "activation": "relu"},
    ),
    "masked: backwards, then zero there": (
        {"masked": True, "go_backwards": True},
        {"zero_output_for_mask": True},  # all that is seen of it is the last output
    ),
}
# Without cuDNN, whose layers have no loop.
KINDS: dict[str, tuple[type[keras.layers.RNN], dict[str, Any]]] = {
    "LSTM": (layers.LSTM, {"use_cudnn": False}),
    "GRU": (layers.GRU, {"use_cudnn": False}),
    "GRU, reset before": (layers.GRU, {"reset_after": False, "use_cudnn": False}),
    "SimpleRNN": (layers.SimpleRNN, {}),
}


def numbers(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sequences() -> np.ndarray:
    """Some of them end early, one begins late."""
    values = numbers(BATCH, TIME, INPUTS)
    values[0, 5:] = values[1, :2] = 0
    return values


def built(build: Build) -> keras.Model:
    """A model with the same weights, none of them zero, whenever it is built."""
    keras.utils.set_random_seed(11)
    model = build()
    for number, weight in enumerate(model.trainable_variables):
        weight.assign(numbers(*weight.shape, seed=number) / 2)
    return model


def of_layer(
    kind: str, *, masked: bool = False, upper: dict[str, Any] | None = None, **arguments: Any
) -> Build:
    """A model with the layer, and another of its kind above it, between which dX flows.

    The lower one returns all outputs, the upper one the last.
    """
    layer, own = KINDS[kind]

    def build() -> keras.Model:
        x = inputs = keras.Input((TIME, INPUTS))
        if masked:
            x = layers.Masking()(x)
        x = layer(UNITS, return_sequences=True, **own, **arguments)(x)
        x = layer(4, **own, **(upper or {}))(x)
        return keras.Model(inputs, layers.Dense(2)(x))

    return build


def gradients(model: keras.Model, inputs: Any = None, dtype: Any = np.float32) -> list[np.ndarray]:
    """The loss, and its gradients of the inputs and of all weights, in a graph."""
    given = tf.nest.map_structure(
        lambda x: tf.constant(x, dtype), sequences() if inputs is None else inputs
    )

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs = tf.nest.flatten(model(given, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.cast(each, dtype) ** 2) for each in outputs])
        found = tape.gradient(loss, [*tf.nest.flatten(given), *model.trainable_variables])
        return [loss, *found]

    return [each.numpy() for each in step()]


def check_alike(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 1e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(other).max() > 0
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_loop(kind: str, variant: str) -> None:
    lower, upper = VARIANTS[variant]
    build = of_layer(kind, upper=upper, **lower)
    plain = gradients(built(build))
    check_alike(gradients(put_recurrent_gradients_after_loop(built(build))), plain)


@few(16)
@given(
    kind=st.sampled_from(list(KINDS)),
    batch=st.integers(1, 4),
    time=st.integers(1, 5),
    inputs=st.integers(1, 4),
    units=st.integers(1, 5),
    backwards=st.booleans(),
)
def test_of_any_shape(
    kind: str, batch: int, time: int, inputs: int, units: int, backwards: bool
) -> None:
    layer, own = KINDS[kind]
    found = []
    for change in (lambda model: model, put_recurrent_gradients_after_loop):
        model = change(
            built(
                lambda: keras.Sequential(
                    [keras.Input((time, inputs)), layer(units, go_backwards=backwards, **own)]
                )
            )
        )
        x = tf.constant(numbers(batch, time, inputs))
        with tf.GradientTape() as tape:  # without a graph
            tape.watch(x)
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        found.append(
            [each.numpy() for each in tape.gradient(loss, [x, *model.trainable_variables])]
        )
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_of_both_directions_with_given_and_returned_states(kind: str) -> None:
    layer, own = KINDS[kind]
    number = 2 if kind == "LSTM" else 1

    def build() -> keras.Model:
        inputs = keras.Input((TIME, INPUTS))
        states = [keras.Input((UNITS,)) for _ in range(number)]
        x, *last = layer(UNITS, return_sequences=True, return_state=True, **own)(
            inputs, initial_state=states
        )
        x = layers.Bidirectional(layer(4, **own))(layers.Masking()(x))
        return keras.Model([inputs, *states], [x, *last])

    inputs = [sequences(), *(numbers(BATCH, UNITS, seed=at) for at in range(number))]
    check_alike(
        gradients(put_recurrent_gradients_after_loop(built(build)), inputs),
        gradients(built(build), inputs),
    )


def test_of_an_unknown_length() -> None:
    def build() -> keras.Model:
        inputs = keras.Input(batch_shape=(BATCH, None, INPUTS))
        return keras.Model(inputs, layers.LSTM(UNITS, use_cudnn=False)(inputs))

    model = put_recurrent_gradients_after_loop(built(build))

    @tf.function(input_signature=[tf.TensorSpec((BATCH, None, INPUTS))], autograph=False)
    def run(inputs: tf.Tensor) -> tf.Tensor:
        return model(inputs, training=True)

    for length in (1, 2 * TIME):
        inputs = tf.constant(numbers(BATCH, length, INPUTS))
        np.testing.assert_allclose(run(inputs), model(inputs), rtol=1e-5, atol=1e-6)


def test_states_are_kept_between_batches() -> None:
    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input(batch_shape=(BATCH, TIME, INPUTS)),
                layers.GRU(UNITS, stateful=True, use_cudnn=False),
            ]
        )

    ours, theirs = put_recurrent_gradients_after_loop(built(build)), built(build)
    first = gradients(theirs)
    check_alike(gradients(ours), first)
    second = gradients(theirs)
    assert np.abs(first[0] - second[0]) > 1e-3
    check_alike(gradients(ours), second)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_no_worse_than_the_loops(kind: str) -> None:
    """Against the same in float64, over many times and samples."""
    layer, own = KINDS[kind]
    inputs = numbers(32, 50, 8)

    def build(dtype: str = "float32") -> keras.Model:
        model = keras.Sequential([keras.Input((50, 8), dtype=dtype)])
        model.add(layer(16, dtype=dtype, return_sequences=True, **own))
        return model

    exact = gradients(built(lambda: build("float64")), inputs, np.float64)

    def worst(found: list[np.ndarray]) -> float:
        return max(
            float(np.abs(one - other).max() / np.abs(other).max())
            for one, other in zip(found, exact, strict=True)
        )

    ours = worst(gradients(put_recurrent_gradients_after_loop(built(build)), inputs))
    assert ours < max(2 * worst(gradients(built(build), inputs)), 1e-6)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_in_mixed_precision(precision: str) -> None:
    found = []
    keras.config.set_dtype_policy(precision)
    try:
        for change in (lambda model: model, put_recurrent_gradients_after_loop):
            found.append(gradients(change(built(of_layer("LSTM")))))
    finally:
        keras.config.set_dtype_policy("float32")
    check_alike(found[1], found[0], tolerance=0.05)


def units_of(model: keras.Model) -> tuple[Unit, ...]:
    """The backward units of a step."""

    @tf.function(autograph=False)
    def step(inputs: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs, training=True) ** 2)
        weights = model.trainable_variables
        seed = tf.ones_like(loss)
        found = tape.gradient(loss, weights, output_gradients=seed)
        units.extend(find_backward_units([seed], found, [weight.path for weight in weights]))

    units: list[Unit] = []
    step.get_concrete_function(tf.constant(sequences()))
    return tuple(units)


@pytest.mark.parametrize("kind", KINDS)
def test_the_products_are_dw(kind: str) -> None:
    model = built(of_layer(kind))

    def of_upper_layer() -> list[str]:
        upper = model.layers[-2]
        names = {weight.path for weight in upper.trainable_variables}
        found = [unit for unit in units_of(model) if names & set(unit.variables)]
        assert {unit.kind for unit in found} == {"dW"}
        return [op.type for unit in found for op in unit.ops]

    assert "MatMul" not in of_upper_layer()  # the loop has it
    put_recurrent_gradients_after_loop(model)
    # Of the kernel and the recurrent kernel, which GRU's reset divides.
    assert of_upper_layer().count("MatMul") == (3 if kind == "GRU, reset before" else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_stay_as_they_are(kind: str) -> None:
    model = built(of_layer(kind, masked=True, dropout=0.3))
    before = model.predict(sequences(), verbose=0)
    put_recurrent_gradients_after_loop(model)
    np.testing.assert_array_equal(model.predict(sequences(), verbose=0), before)


def test_it_is_logged_with_what_stays(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(layers.LSTM):
        pass

    model = keras.Sequential(
        [
            keras.Input((TIME, INPUTS)),
            layers.LSTM(4, return_sequences=True, use_cudnn=False, name="changed"),
            layers.LSTM(4, return_sequences=True, unroll=True, name="unrolled"),
            layers.GRU(4, return_sequences=True, recurrent_dropout=0.2, name="dropped"),
            layers.GRU(4, return_sequences=True, implementation=1, name="divided"),
            layers.RNN(layers.LSTMCell(4), return_sequences=True, name="general"),
            Mine(4, name="mine"),
        ]
    )
    with caplog.at_level(logging.INFO, "ooodist"):
        assert put_recurrent_gradients_after_loop(model) is model
    (message,) = caplog.messages
    assert "equal up to rounding: changed; as they were: " in message
    for reason in (
        "unrolled is unrolled",
        "dropped has recurrent_dropout=0.2",
        "divided has implementation=1",
        "general is a RNN",
        "mine is a Mine",
    ):
        assert reason in message


@pytest.mark.parametrize(
    ("above", "reason"),
    [
        ([layers.Flatten()], "it has no LSTM, GRU or SimpleRNN"),
        ([layers.LSTM(3, unroll=True, name="short")], "short is unrolled"),
    ],
)
def test_it_is_refused_where_nothing_changes(above: list[keras.Layer], reason: str) -> None:
    model = keras.Sequential([keras.Input((TIME, INPUTS)), *above])
    with pytest.raises(UserError, match=f"no layer of model .*: {reason}.*; leave this out"):
        put_recurrent_gradients_after_loop(model)


def test_cudnn_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: ["GPU:0"])
    model = keras.Sequential([keras.Input((TIME, INPUTS)), layers.LSTM(UNITS)])
    with pytest.raises(UserError, match=r"is computed by cuDNN .*use_cudnn=False"):
        put_recurrent_gradients_after_loop(model)
    put_recurrent_gradients_after_loop(built(of_layer("LSTM")))


def test_all_kinds_are_tested() -> None:
    assert {kind for kind, _ in KINDS.values()} == set(_FORMULAS)
