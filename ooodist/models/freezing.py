"""Freezes the layers of a model that a job file names."""

import logging
import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import keras

from ooodist.compat.keras_model import layers_of
from ooodist.errors import UserError

logger = logging.getLogger("ooodist")

LEFT_OUT = "!"
NUM_NEAR = 5  # names in the message about a pattern that names no layer


def freeze(model: keras.Model, patterns: Sequence[str]) -> None:
    """Makes the layers that the patterns name untrainable.

    A frozen layer has no gradient, exchange, update or optimizer state. Keras runs a frozen batch
    normalization in inference mode, so its statistics stay, too. Dropout goes on.

    Args:
        model: is built.
        patterns: of a shell, as ``stage_0*``. A layer of an inner model or layer has the name
            ``inner/layer``, and ``inner`` names all of them. With ``!`` in front, a pattern takes
            its layers out of those that earlier ones name.

    Raises:
        UserError: a pattern names no layer with weights, or nothing is left to train.
    """
    if not patterns:
        return
    layers = list(layers_with_weights(model))
    trained = {name for name, _ in layers}
    for index, pattern in enumerate(patterns):
        wanted = pattern.removeprefix(LEFT_OUT)
        named = {name for name, _ in layers if _is_named(name, wanted)}
        if not named:
            near = get_close_matches(wanted, [name for name, _ in layers], NUM_NEAR, cutoff=0)
            raise UserError(
                f"model.freeze[{index}] is {pattern!r}, which names no layer with weights of model "
                f"{model.name}; the nearest names are {', '.join(near)}"
            )
        trained = trained - named if wanted == pattern else trained | named
    for name, layer in layers:
        # Keras would freeze the inner layers that are to be trained, too.
        if not any(f"{each}/".startswith(f"{name}/") for each in trained):
            layer.trainable = False
    if not model.trainable_variables:
        raise UserError(
            f"model.freeze is {list(patterns)}, which leaves nothing of model {model.name} to "
            f"train; take a layer out, as {LEFT_OUT}{layers[-1][0]}"
        )
    number = sum(math.prod(weight.shape) for weight in model.trainable_variables)
    logger.info(
        "model %s: %s of %s parameters are trained, as model.freeze names layers",
        *(model.name, f"{number:,}", f"{model.count_params():,}"),
    )


def layers_with_weights(layer: keras.Layer, prefix: str = "") -> Iterator[tuple[str, keras.Layer]]:
    """The layers within a layer or model that have weights, by name; outer ones come first."""
    is_model = isinstance(layer, keras.Model)
    for inner in (
        layer.layers if is_model else layers_of(layer, include_self=False, recursive=False)
    ):
        if inner.weights:
            name = f"{prefix}{inner.name}"
            yield name, inner
            yield from layers_with_weights(inner, f"{name}/")


def _is_named(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")
