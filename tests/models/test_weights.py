"""Start weights from a file."""

import logging
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.errors import UserError
from ooodist.models import build, load_start_weights
from ooodist.models.mlp import MlpConfig
from ooodist.models.transformers.gpt import GptConfig

from .samples import SMALL, SMALL_BLOCKS, images, loss_of, random_batch, tokens

MLP = MlpConfig(layers=(8, 6))


@pytest.mark.parametrize(
    "name", ["mlp", "resnet20_batch", "vit_token", "bert_language", "gpt_untied", "lstm_language"]
)
def test_every_family_starts_from_its_own_file(name: str, tmp_path: Path) -> None:
    config, data = SMALL[name]
    first = build(config, data)
    path = tmp_path / "start.weights.h5"
    first.save_weights(path)
    second = build(replace(config, weights=str(path)), data)
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("file_name", ["start.keras", "start.weights.h5"])
def test_file_of_a_trained_model(file_name: str, tmp_path: Path) -> None:
    """Such a file also holds the optimizer's variables, which are not start weights."""
    data = images()
    trained = build(MLP, data)
    trained.compile("adam", loss_of(data), metrics=["accuracy"], run_eagerly=True)
    trained.train_on_batch(*random_batch(data))
    path = tmp_path / file_name
    trained.save(path) if path.suffix == ".keras" else trained.save_weights(path)
    started = build(replace(MLP, weights=str(path)), data)
    for one, other in zip(trained.weights, started.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    build(MLP, images()).save_weights(tmp_path / "mlp.weights.h5")
    build(replace(MLP, weights="~/mlp.weights.h5"), images())


def _error(config, data) -> str:
    with pytest.raises(UserError) as error:
        build(config, data)
    return str(error.value)


@pytest.mark.parametrize("file_name", ["mlp.keras", "mlp.weights.h5"])
def test_other_sizes_name_the_first_layer_and_both_shapes(file_name: str, tmp_path: Path) -> None:
    model = build(MLP, images())
    path = tmp_path / file_name
    model.save(path) if path.suffix == ".keras" else model.save_weights(path)
    message = _error(MlpConfig(layers=(8, 7), weights=str(path)), images())
    assert (
        "layer dense_1 has shapes (8, 7), (7,) in the model, but shapes (8, 6), (6,) in the file"
        in message
    )
    assert str(path) in message


@pytest.mark.parametrize("file_name", ["start.keras", "start.weights.h5"])
@pytest.mark.parametrize("name", ["mlp", "resnet20_batch", "vit_token", "bert_classes"])
def test_the_last_layer_may_be_of_other_classes(
    name: str, file_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, data = SMALL[name]
    path = tmp_path / file_name
    trained = build(config, replace(data, num_classes=7))
    trained.save(path) if path.suffix == ".keras" else trained.save_weights(path)
    keras.utils.set_random_seed(1)
    *_, kernel, bias = build(config, data).weights
    keras.utils.set_random_seed(1)
    with caplog.at_level(logging.INFO, "ooodist"):
        started = build(replace(config, weights=str(path)), data)
    expected = [*trained.weights[:-2], kernel, bias]
    for one, other in zip(expected, started.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert caplog.messages == [
        f"model {config.name} starts from the weights in {path}; predictions/kernel, "
        "predictions/bias have other shapes there and start as initialized"
    ]


def test_the_last_layer_of_an_inner_model(tmp_path: Path) -> None:
    path = str(tmp_path / "inner.keras")
    trained = in_a_model(build(MLP, images(num_classes=7)))
    trained.save(path)
    started = in_a_model(build(MLP, images()))
    load_start_weights(started, path)
    for one, other in zip(trained.weights[:-2], started.weights[:-2], strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(UserError, match="layer dense_1 has shapes"):
        load_start_weights(in_a_model(build(MlpConfig(layers=(8, 7)), images())), path)


def in_a_model(model: keras.Model) -> keras.Model:
    return keras.Sequential([keras.Input(model.input_shape[1:]), model])


def test_a_table_that_is_the_first_layer_too_must_fit(tmp_path: Path) -> None:
    path = str(tmp_path / "gpt.keras")
    build(GptConfig(**SMALL_BLOCKS), tokens(num_classes=13)).save(path)
    message = _error(GptConfig(**SMALL_BLOCKS, weights=path), tokens())
    assert "layer tokens has shapes (11, 16) in the model, but shapes (13, 16)" in message


def test_a_file_of_which_nothing_fits(tmp_path: Path) -> None:
    path = str(tmp_path / "linear.keras")
    build(MlpConfig(layers=()), images(num_classes=7)).save(path)
    message = _error(MlpConfig(layers=(), weights=path), images())
    assert "layer predictions has shapes (192, 5), (5,) in the model" in message


def test_more_layers_in_the_file_are_not_dropped(tmp_path: Path) -> None:
    """Keras itself would load the first layers and say nothing."""
    path = str(tmp_path / "gpt.keras")
    build(GptConfig(**SMALL_BLOCKS), tokens()).save(path)
    message = _error(GptConfig(**(SMALL_BLOCKS | {"layers": 1}), weights=path), tokens())
    assert "the file has layer" in message
    assert "block_1" in message


def test_more_layers_in_the_model(tmp_path: Path) -> None:
    path = str(tmp_path / "gpt.keras")
    build(GptConfig(**SMALL_BLOCKS), tokens()).save(path)
    message = _error(GptConfig(**(SMALL_BLOCKS | {"layers": 3}), weights=path), tokens())
    assert "the model has layer block_2" in message


def test_shape_inside_a_composite_layer(tmp_path: Path) -> None:
    path = str(tmp_path / "gpt.weights.h5")
    build(GptConfig(**SMALL_BLOCKS), tokens()).save_weights(path)
    message = _error(GptConfig(**(SMALL_BLOCKS | {"heads": 4}), weights=path), tokens())
    assert "(16, 4, 4)" in message
    assert "(16, 2, 8)" in message


def test_missing_file() -> None:
    assert "there is no such file" in _error(MlpConfig(weights="nowhere.keras"), images())


@pytest.mark.parametrize("file_name", ["mlp.keras", "mlp.weights.h5"])
def test_truncated_file(file_name: str, tmp_path: Path) -> None:
    model = build(MLP, images())
    path = tmp_path / file_name
    model.save(path) if path.suffix == ".keras" else model.save_weights(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = _error(replace(MLP, weights=str(path)), images())
    assert "no complete Keras weights file" in message


def test_something_else_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text.keras"
    path.write_text("not a model")
    message = _error(replace(MLP, weights=str(path)), images())
    assert "no complete Keras weights file" in message


def test_file_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "other.weights.h5"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save_weights(path)
    assert "does not fit model mlp" in _error(replace(MLP, weights=str(path)), images())
