"""preprocess and augment of data: Keras's layers and functions, with seeds of each sample's own."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.config import job
from ooodist.data import kinds
from ooodist.data.result import Data
from ooodist.errors import UserError

FUNCTIONS = """
import tensorflow as tf

def negative(x, factor=1):
    return -factor * x

def noisy(x, seed):
    return x + tf.random.stateless_uniform(tf.shape(x), seed)
"""
LAYERS = (
    "[{name: RandomFlip, mode: horizontal}, {name: gaussian_noise, stddev: 0.1}, "
    "'users_layers:noisy']"
)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_layers.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))


def load(settings: str, *, batch: int = 8, rank: int = 0, size: int = 1, start: int = 0) -> Data:
    config = job.load(None, [f"data={{{settings}}}"]).data
    return kinds.load(config, batch=batch, rank=rank, size=size, seed=3, start_step=start)


def images(loaded: Data, number: int) -> list[np.ndarray]:
    return [x.numpy() for x, _ in loaded.train.take(number)]


@pytest.mark.parametrize("kind", ["name: digits", "name: tests.data.kinds.test_layers:sequential"])
def test_numbers_depend_on_a_samples_place_alone(kind: str) -> None:
    settings = f"{kind}, augment: {LAYERS}"
    whole = images(load(settings), 4)
    plain = images(load(kind), 4)
    assert all((a != b).any() for a, b in zip(whole, plain, strict=True))
    assert len({image.tobytes() for image in np.concatenate(whole)}) == 32
    resumed = images(load(settings, start=2), 2)
    np.testing.assert_array_equal(resumed, whole[2:])
    workers = [images(load(settings, batch=4, rank=rank, size=2), 4) for rank in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(workers, axis=1), whole)
    of_validation = [load(each).validation for each in (settings, kind)]
    for (x, _), (same, _) in zip(*of_validation, strict=True):  # type: ignore[arg-type]
        np.testing.assert_array_equal(x, same)


def sequential() -> object:
    import tensorflow as tf

    from ooodist.data.kinds import digits  # imports TensorFlow

    x, y = digits.load()
    x, y = x[:64, ..., None].astype(np.float32), y[:64]
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    return whole.take(48), whole.skip(48)


def test_preprocessing_is_for_validation_too_and_comes_first() -> None:
    layers = "{name: resizing, height: 4, width: 6}, {name: 'users_layers:negative', factor: 2}"
    loaded = load(f"name: digits, preprocess: [{layers}], augment: [{{name: rescaling, scale: 3}}]")
    assert loaded.input_spec.shape == (4, 6, 1)
    assert loaded.validation is not None
    for dataset, least in ((loaded.train, -6), (loaded.validation, -2)):
        x, _ = next(iter(dataset))
        assert x.shape[1:] == (4, 6, 1)
        assert least <= x.numpy().min() < least / 2
        assert x.numpy().max() <= 0


@pytest.mark.parametrize("model", ["resnet50", "densenet", "mobilenet_v2"])
def test_a_model_of_keras_has_its_own_function(model: str) -> None:
    own = f"keras.applications.{model}:preprocess_input"
    colors = "name: digits, channels: 3, preprocess: [{name: rescaling, scale: 255}"
    (x,), (plain,) = images(load(f"{colors}, '{own}']"), 1), images(load(f"{colors}]"), 1)
    function = importlib.import_module(f"keras.applications.{model}").preprocess_input
    np.testing.assert_allclose(x, function(plain), rtol=1e-6, atol=1e-5)


def test_layers_are_not_in_the_precision_of_the_model() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        loaded = load("name: digits, preprocess: [{name: rescaling, scale: 3}]")
    finally:
        keras.config.set_dtype_policy("float32")
    assert loaded.input_spec.dtype.name == "float32"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("name: digits, augment: [random_flop]", "data.augment[0].name is random_flop (did you me"),
        ("name: digits, augment: [mix_up]", "data.augment[0].name is mix_up, which mixes labels"),
        ("name: digits, preprocess: [resizing]", "data.preprocess[0].height is missing; resizing"),
        (
            "name: digits, augment: [{name: random_flip, seed: 3}]",
            "data.augment[0].seed is given; leave it out: the seed of the job decides",
        ),
        (
            "name: synthetic, input_shape: [3], num_classes: 2, augment: [random_flip]",
            "data.augment[0]: random_flip cannot be applied to x, which is float32 (3,)",
        ),
        ("name: npz, path: x, augment: true", "data.augment is true; it must be a list"),
        (
            "name: digits, augment: [{name: random_crop, height: 6, width: 5}]",
            "data.augment turns x of shape (8, 8, 1) into shape (6, 5, 1), but validation keeps",
        ),
        ("name: digits, preprocess: ['users_layers:no']", "module users_layers has no 'no'"),
        ("name: digits, preprocess: ['users_layers:noisy']", "users_layers:noisy cannot be appl"),
        ("name: text, augment: [random_flip]", "there is no key data.augment"),
        (
            "name: digits, preprocess: [{name: normalization}]",
            "data.preprocess[0].mean or va",
        ),
    ],
)
def test_mistakes(settings: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load(settings)


def test_layers_survive_yaml() -> None:
    for augment in (LAYERS, "true"):
        preprocess = "[{name: rescaling, scale: 3}]"
        settings = f"data={{name: digits, preprocess: {preprocess}, augment: {augment}}}"
        config = job.load(None, [settings])
        assert job.loads(job.to_yaml(config)) == config
