"""Model and data that do not go together: one clear error each."""

import re

import pytest
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.models import MODELS, build, config_class

from .samples import SMALL_BLOCKS, Description, images, tokens


def _assert_error(name: str, data: Description, *parts: str, **settings: object) -> None:
    with pytest.raises(UserError) as error:
        build(MODELS[name].config(**settings), data)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "vgg16",
        "densenet121",
        "densenet",
        "mobilenet_v2",
        "mobilenet_v3_large",
    ],
)
def test_too_small_images(name: str) -> None:
    _assert_error(name, images(8), name, "32x32", "8x8", "data.image_size: 32")


def test_patch_that_does_not_divide_the_image() -> None:
    _assert_error("vit_b16", images(20), "model.patch is 16", "20x20", "data.image_size")


def test_images_of_wrong_rank() -> None:
    data = Description(tf.TensorSpec((28, 28), tf.float32))
    _assert_error("resnet20", data, "(height, width, channels)", "(28, 28)", "mlp")


def test_integer_pixels() -> None:
    data = Description(tf.TensorSpec((32, 32, 3), tf.uint8))
    _assert_error("resnet20", data, "uint8", "divide pixels by 255")


def test_images_for_a_token_model() -> None:
    _assert_error("gpt", images(), "gpt", "integer tokens", "(8, 8, 3)", "{name: text}")


def test_unknown_shape() -> None:
    data = Description(tf.TensorSpec((None, 32, 3), tf.float32))
    _assert_error("resnet20", data, "one known, non-empty shape", "(None, 32, 3)")


def test_several_inputs() -> None:
    spec = {"left": tf.TensorSpec((4,), tf.float32), "right": tf.TensorSpec((4,), tf.float32)}
    _assert_error("mlp", Description(spec), "one input", "left, right", "package.module:function")


@pytest.mark.parametrize(
    ("name", "data"),
    [("mlp", Description(tf.TensorSpec((4,), tf.float32), "language")), ("gpt", tokens(task="x"))],
)
def test_task_that_the_model_is_not_made_for(name: str, data: Description) -> None:
    _assert_error(name, data, f"model {name} is made for", data.task)


@pytest.mark.parametrize("num_classes", [None, 0])
def test_unknown_number_of_classes(num_classes: int | None) -> None:
    data = Description(tf.TensorSpec((4,), tf.float32), num_classes=num_classes)
    _assert_error("mlp", data, f"num_classes: {num_classes}")


def test_vocabulary_must_be_given_for_classification() -> None:
    _assert_error("lstm", tokens(task="classification"), "set model.vocabulary_size")


def test_vocabulary_smaller_than_the_data() -> None:
    _assert_error("gpt", tokens(), "model.vocabulary_size is 7", "11", vocabulary_size=7)


def test_vocabulary_may_be_larger_than_the_data() -> None:
    config = MODELS["gpt"].config(**SMALL_BLOCKS, vocabulary_size=16)
    assert build(config, tokens()).output_shape == (None, 6, 16)


def test_regression_of_several_numbers() -> None:
    data = Description(tf.TensorSpec((4,), tf.float32), "regression", 3)
    assert build(MODELS["mlp"].config(), data).output_shape == (None, 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mlp", {"layers": (8, 0)}, "model.layers[1] is 0; it must be a whole number, at least 1"),
        ("mlp", {"dropout": 1.0}, "model.dropout is 1.0"),
        ("mlp", {"activation": "rellu"}, "model.activation is 'rellu'"),
        ("resnet20", {"normalization": "group"}, "must be one of batch, layer, none"),
        ("resnet20", {"blocks_per_stage": 0}, "model.blocks_per_stage is 0"),
        ("resnet18", {"width": 0}, "model.width is 0"),
        ("mobilenet_v2", {"alpha": 0.0}, "model.alpha is 0.0"),
        ("vit_b16", {"pooling": "max"}, "must be one of token, mean"),
        ("gpt", {"heads": 7}, "model.width is 768 and model.heads is 7"),
        ("bert_12", {"layers": 0}, "model.layers is 0"),
        ("lstm", {"vocabulary_size": 0}, "model.vocabulary_size is 0"),
        ("gpt", {"weights": "imagenet"}, "no such weights for gpt"),
        ("resnet50", {"weights": "model.ckpt"}, ".keras or .weights.h5"),
    ],
)
def test_impossible_settings(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        MODELS[name].config(**settings)


def test_config_class_of_a_name() -> None:
    assert config_class("gpt") is MODELS["gpt"].config
    assert config_class("my.module:make").__name__ == "FunctionConfig"


def test_unknown_name() -> None:
    with pytest.raises(UserError, match=r"'resnet5' \(did you mean resnet50\?\).*mlp, resnet20"):
        config_class("resnet5")
