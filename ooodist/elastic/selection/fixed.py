"""Fixed selections, independent of cost, that serve as baselines."""

from __future__ import annotations

from collections.abc import Collection

import keras

from ooodist.compat.keras_model import layers_of
from ooodist.elastic.selection.items import Selectable
from ooodist.step.backward import variable_names

FIXED = ("full", "head", "bias_norm_head")


def fixed_weights(name: str, model: keras.Model, choice: Selectable) -> frozenset[str]:
    """The names of the weights that one of FIXED trains."""
    everything = choice.weights(range(len(choice.items)))
    if name == "full":
        return everything
    head = choice.weights(choice.head)
    if name == "head":
        return head
    return head | (everything & frozenset(_biases_and_norms(model)))


def _biases_and_norms(model: keras.Model) -> Collection[str]:
    """The names of trainable biases and of all trained weights of normalization layers."""
    weights = model.trainable_variables
    of_norms = {
        id(weight)
        for layer in layers_of(model)
        if "Normalization" in type(layer).__name__
        for weight in layer.trainable_variables
    }
    return {
        name
        for name, weight in zip(variable_names(weights), weights, strict=True)
        if id(weight) in of_norms or "bias" in name.rpartition("/")[2]
    }
