"""Every family, small: learns, has independent start weights, saves, runs in mixed precision."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.models import MODELS, DataDescription, ModelConfig, build, densenet

from .samples import SMALL, images, loss_of, random_batch

MOST_STEPS = 25  # that a batch is trained on
Family = tuple[ModelConfig, DataDescription, keras.Model]


@pytest.fixture(autouse=True)
def _same_seed_and_default_policy() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


@pytest.fixture(scope="module", autouse=True)
def _dense_blocks_of_few_layers() -> Iterator[None]:
    """All layers of a block are alike; test_parameter_counts.py builds the published numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(densenet.BLOCKS, 121, (2, 3, 2, 1))
        yield


@pytest.fixture(scope="module", params=SMALL)
def family(request: pytest.FixtureRequest) -> Family:
    """One model for the tests that take it; the last of them trains it."""
    config, data = SMALL[request.param]
    keras.utils.set_random_seed(1)
    return config, data, build(config, data)


def test_model_is_functional_and_uncompiled(family: Family) -> None:
    config, data, model = family
    assert model.name == config.name
    assert not model.compiled
    assert model.input_shape == (None, *data.input_spec.shape)
    assert model.outputs[0].dtype == "float32"
    assert len({v.path for v in model.variables}) == len(model.variables)


def test_start_weights_are_independent(family: Family) -> None:
    """An initializer object that two layers share would give them equal weights."""
    *_, model = family
    kernels = [v.numpy() for v in model.trainable_variables if len(v.shape) > 1 and np.any(v)]
    for index, kernel in enumerate(kernels):
        for other in kernels[:index]:
            assert kernel.shape != other.shape or not np.array_equal(kernel, other)


def test_saved_model_predicts_the_same(family: Family, tmp_path: Path) -> None:
    _, data, model = family
    _assert_round_trip(model, data, tmp_path)


def test_learns_one_batch(family: Family) -> None:
    _, data, model = family
    x, y = random_batch(data)
    weights = [variable.value for variable in model.trainable_variables]
    losses: list[float] = []
    # How many steps it takes differs with the processor, by its kernels' rounding. Without a
    # graph, whose tracing takes far longer than these few.
    while not losses or losses[-1] >= 0.9 * losses[0]:
        assert len(losses) <= MOST_STEPS, losses
        with tf.GradientTape() as tape:
            loss = loss_of(data)(y, model(x, training=True))
        losses.append(float(loss))
        assert np.isfinite(losses[-1])
        gradients = tape.gradient(loss, weights)
        # So long that the loss would fall by 3 tenths if it were linear, of whatever model.
        rate = 0.3 * loss / tf.linalg.global_norm(gradients) ** 2
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(rate * gradient)


def test_saved_resnet50_predicts_the_same(tmp_path: Path) -> None:
    data = images(32)
    _assert_round_trip(build(MODELS["resnet50"].config(), data), data, tmp_path)


def _assert_round_trip(model: keras.Model, data: DataDescription, folder: Path) -> None:
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    x, _ = random_batch(data, batch=2)
    np.testing.assert_array_equal(model(x, training=False), loaded(x, training=False))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, "mixed_float16") for name in SMALL]
    + [(name, "mixed_bfloat16") for name in ("mlp", "resnet20_batch", "gpt", "lstm_language")],
)
def test_mixed_precision(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    config, data = SMALL[name]
    model = build(config, data)
    x, y = random_batch(data, batch=2)
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_of(data)(y, logits)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert logits.dtype == tf.float32
    assert np.isfinite(loss)
    assert all(gradient is not None for gradient in gradients)
    assert all(v.dtype == "float32" for v in model.trainable_variables)
    compute_types = {layer.compute_dtype for layer in model.layers}
    assert policy.removeprefix("mixed_") in compute_types


@pytest.mark.parametrize(
    "name", ["resnet20_batch", "resnet18", "densenet", "mobilenet_v2", "mobilenet_v3_large"]
)
def test_dropout_of_the_last_layers_input(name: str) -> None:
    config, data = SMALL[name]
    plain, model = (build(replace(config, dropout=rate), data) for rate in (0.0, 0.5))
    assert [v.path for v in model.weights] == [v.path for v in plain.weights]
    model.set_weights(plain.get_weights())
    for layer in (*plain.layers, *model.layers):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    x, _ = random_batch(data, batch=2)
    expected = plain(x, training=True)
    np.testing.assert_array_equal(model(x, training=False), expected)
    assert not np.array_equal(model(x, training=True), expected)
