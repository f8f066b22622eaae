"""Builds the variables of a model before its first step."""

from __future__ import annotations

from typing import Any

import keras

from ooodist.compat.keras_model import build_with, layers_of
from ooodist.errors import UserError
from ooodist.step.optimizer import not_built


def build(model: keras.Model, batch: Any) -> None:
    """Builds the weights of a compiled model, and its optimizer's state where that is known.

    A custom ``train_step`` decides which weights its optimizers train: these build their state in
    the first step, identically on all ranks, as without ooodist.

    Args:
        batch: a batch as the data set yields it.

    Raises:
        UserError: Keras cannot build the weights of a model with a custom ``train_step``.
    """
    if type(model).train_step is keras.Model.train_step:
        if not model.built or not model.optimizer.built:
            build_with(model, batch)
        return
    parts = layers_of(model, include_self=False)
    if all(layer.built for layer in parts):
        return  # the model itself need not be built: one of several networks may have no call
    try:
        with not_built(model):
            build_with(model, batch)
    except (NotImplementedError, RuntimeError) as error:
        missing = ", ".join(layer.name for layer in parts if not layer.built)
        raise UserError(
            f"the weights of {missing} in model {model.name} are not known before its train_step "
            "runs, so they cannot be given to all ranks; call these layers on data, or build() "
            f"them, before fit ({str(error).strip().splitlines()[-1]})"
        ) from error
