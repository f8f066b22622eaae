"""weights: imagenet, as far as it goes without a network."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from ooodist.compat.keras_deferred import made_without_values
from ooodist.errors import UserError
from ooodist.models import MODELS, build
from ooodist.models.imagenet import TRAINED_ON, copy_imagenet_weights

from .samples import images

OPTIONS = {"alpha": 0.35}


def test_failed_download_says_to_pass_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A proxy that refuses, and an empty cache: the download fails on any machine.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path))
    with pytest.raises(UserError, match="weights of mobilenet_v2 could not be downloaded") as error:
        build(MODELS["mobilenet_v2"].config(weights="imagenet"), images(32))
    assert "pass the file as model.weights" in str(error.value)


def test_grey_images() -> None:
    with pytest.raises(UserError, match="have 1 channel"):
        build(MODELS["resnet50"].config(weights="imagenet"), images(32, channels=1))


def test_options_without_weights() -> None:
    with pytest.raises(UserError, match=r"mobilenet_v2: .*alpha must be one of"):
        build(MODELS["mobilenet_v2"].config(weights="imagenet", alpha=0.6), images(32))


def _application_with_ones(weights: str, **options: Any) -> keras.Model:
    """Stands for a download: as keras.applications gives it, with every weight 1."""
    model = keras.applications.MobileNetV2(weights=None, **options)
    for variable in model.weights:
        variable.assign(np.ones(variable.shape))
    return model


def test_all_layers_but_the_classifier_are_copied() -> None:
    model = keras.applications.MobileNetV2(
        weights=None, input_shape=(32, 32, 3), classes=5, classifier_activation=None, **OPTIONS
    )
    copy_imagenet_weights(model, _application_with_ones, OPTIONS, "mobilenet_v2")
    classifier = {v.path for v in model.get_layer("predictions").weights}
    for variable in model.weights:
        is_one = bool(np.all(np.asarray(variable) == 1))
        assert is_one == (variable.path not in classifier), variable.path


def test_the_classifier_is_copied_too_for_images_like_imagenets() -> None:
    model = keras.applications.MobileNetV2(
        weights=None, input_shape=(224, 224, 3), classifier_activation=None, **OPTIONS
    )
    copy_imagenet_weights(model, _application_with_ones, OPTIONS, "mobilenet_v2")
    assert all(np.all(np.asarray(variable) == 1) for variable in model.weights)


@pytest.mark.parametrize(
    "name", sorted(TRAINED_ON.keys() - {"resnet101", "resnet152"})
)  # As resnet50, but slower.
def test_layers_are_named_alike_with_and_without_classifier(name: str) -> None:
    """Weights are copied by layer name."""
    application = {
        "resnet50": keras.applications.ResNet50,
        "vgg16": keras.applications.VGG16,
        "densenet121": keras.applications.DenseNet121,
        "mobilenet_v2": keras.applications.MobileNetV2,
        "mobilenet_v3_large": keras.applications.MobileNetV3Large,
    }[name]
    settings = {"weights": None, "input_shape": (32, 32, 3), "classes": 5}
    full, bare = (
        made_without_values(lambda top=top: application(**settings, include_top=top))
        for top in (True, False)
    )
    with_weights = {layer.name for layer in bare.layers if layer.weights}
    assert with_weights <= {layer.name for layer in full.layers}
