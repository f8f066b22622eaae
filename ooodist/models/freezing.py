"""Freezes the layers of a model that a job file names."""

import logging
import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import keras

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
        patterns: of a shell, as ``stage_0*``. A layer of an inner model has the name
            ``inner/layer``, and ``inner`` names all of them. With ``!`` in front, a pattern takes
            its layers out of those that earlier ones name.

    Raises:
        UserError: a pattern names no layer with weights, or nothing is left to train.
    """
    if not patterns:
        return
    layers = list(layers_with_weights(model))
    frozen: set[str] = set()
    for index, pattern in enumerate(patterns):
        wanted = pattern.removeprefix(LEFT_OUT)
        named = {name for name, _ in layers if _is_named(name, wanted)}
        if not named:
            near = get_close_matches(wanted, [name for name, _ in layers], NUM_NEAR, cutoff=0)
            raise UserError(
                f"model.freeze[{index}] is {pattern!r}, which names no layer with weights of model "
                f"{model.name}; the nearest names are {', '.join(near)}"
            )
        frozen = frozen | named if wanted == pattern else frozen - named
    for name, layer in layers:
        if name in frozen:
            layer.trainable = False
    if not model.trainable_variables:
        raise UserError(
            f"model.freeze is {list(patterns)}, which leaves nothing of model {model.name} to "
            f"train; take a layer out, as {LEFT_OUT}{layers[-1][0]}"
        )
    trained = sum(math.prod(weight.shape) for weight in model.trainable_variables)
    logger.info(
        "model %s: %d of %d layers with weights are frozen; %s of %s parameters are trained",
        *(model.name, len(frozen), len(layers), f"{trained:,}", f"{model.count_params():,}"),
    )


def layers_with_weights(model: keras.Model, prefix: str = "") -> Iterator[tuple[str, keras.Layer]]:
    """The layers of a model and of its inner models that have weights, by name, in their order."""
    for layer in model.layers:
        name = f"{prefix}{layer.name}"
        if isinstance(layer, keras.Model):
            yield from layers_with_weights(layer, f"{name}/")
        elif layer.weights:
            yield name, layer


def _is_named(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")
