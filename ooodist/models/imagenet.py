"""Loads initial weights that Keras offers for download, trained on ImageNet."""

import fcntl
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from ooodist.errors import UserError

logger = logging.getLogger("ooodist")

IMAGENET_CLASSES = 1000
IMAGENET_SHAPE = (224, 224, 3)
NETWORK_TIMEOUT = 20.0
"""Timeout of the download, in seconds without an answer."""

_CENTERED_BGR = "channels blue, green, red of 0 to 255, less their means over ImageNet"
_STANDARDIZED = "channels of 0 to 1, standardized with their means and deviations over ImageNet"
_MINUS_ONE_TO_ONE = "channels of -1 to 1"
TRAINED_ON = {
    "resnet50": _CENTERED_BGR,
    "resnet101": _CENTERED_BGR,
    "resnet152": _CENTERED_BGR,
    "vgg16": _CENTERED_BGR,
    "densenet121": _STANDARDIZED,
    "mobilenet_v2": _MINUS_ONE_TO_ONE,
    "mobilenet_v3_large": _MINUS_ONE_TO_ONE,
}
"""The pixel values that the weights of each model expect."""


def copy_imagenet_weights(
    model: keras.Model, application: Callable[..., keras.Model], options: dict[str, Any], name: str
) -> None:
    """Sets the weights of ``model``, built by ``application`` with ``options``, to ImageNet's.

    The classifier keeps its random weights unless the model has ImageNet's 1000 classes and
    224x224 pixels. Raises UserError if the weights are not available for this model.
    """
    shape = tuple(model.input_shape[1:])
    if shape[2] != 3:
        raise UserError(
            f"model.weights is imagenet, but the data's images have {shape[2]} channel(s); these "
            "weights need 3: give images in color, or leave model.weights out."
        )
    with_classifier = model.output_shape[-1] == IMAGENET_CLASSES and shape == IMAGENET_SHAPE
    pretrained = _download(
        name,
        lambda: application(
            weights="imagenet",
            include_top=with_classifier,
            input_shape=shape,
            classifier_activation=None,
            **options,
        ),
    )
    for layer in pretrained.layers:
        if layer.weights:
            model.get_layer(layer.name).set_weights(layer.get_weights())
    logger.info(
        "model %s starts from ImageNet weights%s",
        name,
        "" if with_classifier else "; its classifier starts from random weights",
    )
    logger.warning(
        "the ImageNet weights of %s were trained on %s: the data must give the same",
        name,
        TRAINED_ON[name],
    )


def _download(name: str, load: Callable[[], keras.Model]) -> keras.Model:
    try:
        with _one_download_at_a_time():
            return load()
    except ValueError as error:
        # There are no weights for these options, or the file is corrupt.
        raise UserError(f"model.weights is imagenet, but for {name}: {error}") from error
    except Exception as error:  # Keras raises a plain Exception when a download fails.
        raise UserError(
            f"model.weights is imagenet, but the weights of {name} could not be downloaded (this "
            f"network may not allow it): {error}. Build the model with keras.applications on a "
            "machine that can, save it with model.save_weights, and pass the file as "
            "model.weights."
        ) from error


@contextmanager
def _one_download_at_a_time() -> Iterator[None]:
    """Locks downloads: workers on one host share Keras's cache folder, and Keras takes no lock."""
    lock_path = Path(tempfile.gettempdir()) / f"ooodist-imagenet-{os.getuid()}.lock"
    timeout = socket.getdefaulttimeout()
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        socket.setdefaulttimeout(NETWORK_TIMEOUT)
        try:
            yield
        finally:
            socket.setdefaulttimeout(timeout)
