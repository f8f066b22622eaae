"""Checks and makes the layers of ``data.preprocess`` and ``data.augment``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from ooodist.config.keras_catalogue import (
    Catalogue,
    catalogue,
    check_arguments,
    find,
    make,
    snake_case,
)
from ooodist.config.named_arguments import NamedArguments
from ooodist.errors import UserError
from ooodist.util.user_functions import find_users

# For text and categories, or for several inputs.
_NOT_FOR_X = (
    *("CategoryEncoding", "Discretization", "HashedCrossing", "Hashing", "IntegerLookup"),
    *("MaxNumBoundingBoxes", "Pipeline", "StringLookup", "TextVectorization"),
)
_UNSEEDED = ("AugMix",)  # draws some of its numbers in Python, once
_MIX_LABELS = ("CutMix", "MixUp")  # of x alone, the labels would stay those of one of two samples

_PREPROCESSING = {
    name: kind
    for name, kind in catalogue(
        keras.layers, keras.layers.Layer, snake_case, *_NOT_FOR_X, *_UNSEEDED, *_MIX_LABELS
    ).items()
    if ".preprocessing." in kind.__module__
}
LAYERS: Catalogue = _PREPROCESSING | {"gaussian_noise": keras.layers.GaussianNoise}


def check_layer(named: NamedArguments, path: str) -> NamedArguments:
    """Checks the layer; returns it by its canonical name. Raises UserError for a wrong key."""
    if ":" in named.name:
        return named
    if named.name.replace("_", "").lower() in [name.lower() for name in _MIX_LABELS]:
        raise UserError(
            f"{path}.name is {named.name}, which mixes labels, too; do that in a function that "
            "returns the data set: data: package.module:function"
        )
    name = find(named.name, LAYERS, path, "layer for x")
    if name == "normalization" and not {"mean", "variance"} <= named.arguments.keys():
        raise UserError(f"{path}.mean or variance is missing; normalization needs both here")
    if "seed" in named.arguments:
        raise UserError(f"{path}.seed is given; leave it out: the seed of the job decides")
    return NamedArguments(name, check_arguments(LAYERS[name], named.arguments, path, name))


def make_layer(named: NamedArguments, path: str) -> Callable[..., Any]:
    """Makes a new layer, or finds the function. Raises UserError."""
    if ":" not in named.name:
        # Not in the job's precision, which is the model's.
        return make(LAYERS[named.name], {**named.arguments, "dtype": "float32"}, path)
    function = find_users(named.name, path, "x, changed")
    return partial(function, **named.arguments)
