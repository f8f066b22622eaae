"""Every family, small: learns, has independent start weights, saves, runs in mixed precision."""

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.models import MODELS, build

from .samples import SMALL, images, loss_of, random_batch

MOST_STEPS = 25  # that a batch is trained on


@pytest.fixture(autouse=True)
def _same_seed_and_default_policy() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.parametrize("name", SMALL)
def test_learns_one_batch(name: str) -> None:
    config, data = SMALL[name]
    model = build(config, data)
    x, y = random_batch(data)
    # Tracing a graph takes far longer than these few steps do without one.
    eagerly = name not in {"mlp", "gpt", "lstm_classes"}
    rate = 0.003 if name.startswith("mobilenet") else 0.03
    loss = loss_of(data)
    model.compile(keras.optimizers.Adam(rate), loss, run_eagerly=eagerly)
    # How many steps it takes differs with the processor, by its kernels' rounding.
    losses = [float(loss(y, model(x, training=True)))]
    while losses[-1] >= 0.9 * losses[0]:
        assert len(losses) < MOST_STEPS, losses
        assert np.isfinite(model.train_on_batch(x, y))
        losses.append(float(loss(y, model(x, training=True))))


@pytest.mark.parametrize("name", SMALL)
def test_saved_model_predicts_the_same(name: str, tmp_path: Path) -> None:
    _assert_round_trip(*SMALL[name], tmp_path)


def test_saved_resnet50_predicts_the_same(tmp_path: Path) -> None:
    _assert_round_trip(MODELS["resnet50"].config(), images(32), tmp_path)


def _assert_round_trip(config, data, folder: Path) -> None:
    model = build(config, data)
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    x, _ = random_batch(data, batch=2)
    np.testing.assert_array_equal(model(x, training=False), loaded(x, training=False))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


@pytest.mark.parametrize("name", SMALL)
def test_start_weights_are_independent(name: str) -> None:
    """An initializer object that two layers share would give them equal weights."""
    model = build(*SMALL[name])
    kernels = [v.numpy() for v in model.trainable_variables if len(v.shape) > 1 and np.any(v)]
    for index, kernel in enumerate(kernels):
        for other in kernels[:index]:
            assert kernel.shape != other.shape or not np.array_equal(kernel, other)


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


@pytest.mark.parametrize("name", SMALL)
def test_model_is_functional_and_uncompiled(name: str) -> None:
    config, data = SMALL[name]
    model = build(config, data)
    assert model.name == config.name
    assert not model.compiled
    assert model.input_shape == (None, *data.input_spec.shape)
    assert model.outputs[0].dtype == "float32"
    assert len({v.path for v in model.variables}) == len(model.variables)
