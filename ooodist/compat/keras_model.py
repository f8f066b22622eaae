"""Private state of Keras models, of their variables, and of what they were compiled with."""

from __future__ import annotations

import gc
from typing import Any

import keras

_INSIDE_FIT = "_use_cached_eval_dataset"


def layers_of(
    model: keras.Layer, *, include_self: bool = True, recursive: bool = True
) -> list[keras.Layer]:
    """The layers of a model or layer, also those inside others: ``Layer._flatten_layers``.

    The public ``layers`` has only those of the model itself, and a layer has no such attribute.
    The name is as old as tf.keras.
    """
    found: list[keras.Layer] = list(
        model._flatten_layers(include_self=include_self, recursive=recursive)
    )
    return found


def frozen_weights(model: keras.Model) -> list[keras.Variable]:
    """The weights that are made to be trained, and are not: ``Layer._trainable_variables``.

    Among ``non_trainable_variables`` nothing tells them from statistics (since Keras 3.0), which a
    forward pass changes.
    """
    return [v for layer in layers_of(model) for v in layer._trainable_variables if not v.trainable]


def build_with(model: keras.Model, batch: Any) -> None:
    """Builds weights, metrics and optimizer state as the first step of ``fit`` would.

    This is ``Trainer._symbolic_build`` (since Keras 3.0), which ``fit`` calls itself. The public
    ``build`` makes neither the metrics nor the optimizer state, and needs shapes that a model of
    several inputs does not provide.

    Args:
        model: a compiled model.
        batch: a batch as the data set yields it.
    """
    model._symbolic_build(data_batch=batch)


def compiled_loss(model: keras.Model) -> Any:
    """The object that ``compile`` makes of the losses: ``Trainer._compile_loss``.

    Each ``compile`` makes a new one (since Keras 3.0); ``model.loss`` is what the user gave, which
    may be the same.
    """
    return model._compile_loss


def compiled_metrics(model: keras.Model) -> Any:
    """The object that ``compile`` makes of the metrics: ``Trainer._compile_metrics``.

    None without metrics (since Keras 3.0). ``model.metrics`` includes it, but does not say which
    one it is.
    """
    return model._compile_metrics


def metrics_given_to_compile(model: keras.Model) -> list[Any]:
    """The metrics given to ``compile``, in one list: ``CompileMetrics._user_metrics``.

    Weighted ones (``_user_weighted_metrics``) come last (since Keras 3.0). Before the first step
    ``model.metrics`` does not have them yet.
    """
    compiled = compiled_metrics(model)
    if compiled is None:
        return []
    given: list[Any] = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return given


def restored_epoch(model: keras.Model) -> int | None:
    """The epoch from which ``fit`` resumes, as set by BackupAndRestore: ``_initial_epoch``.

    None: none is set. Only the callback and ``fit`` know of it.
    """
    epoch: int | None = model._initial_epoch
    return epoch


def set_restored_epoch(model: keras.Model, epoch: int) -> None:
    """Makes ``fit`` resume at this epoch, as BackupAndRestore does in ``on_train_begin``."""
    model._initial_epoch = epoch


def is_inside_fit(arguments: dict[str, Any]) -> bool:
    """Whether ``fit`` has called ``evaluate`` with these arguments, to validate.

    ``fit`` says so with ``_use_cached_eval_dataset=True`` (since Keras 3.0), which is not public;
    there is no public way to tell.
    """
    return bool(arguments.get(_INSIDE_FIT, False))


def trained_models() -> list[keras.Model]:
    """The models of this process that ``fit`` or ``train_on_batch`` has trained.

    ``train_function``: Keras makes it when a training begins. Keras has no list of models.
    """
    return [
        each
        for each in gc.get_objects()
        # Not isinstance, which would ask the lazy objects of other libraries for their class.
        if issubclass(type(each), keras.Model) and getattr(each, "train_function", None) is not None
    ]


def set_path(variable: keras.Variable, path: str) -> None:
    """Gives a variable this path: ``Variable._path``, which the public ``path`` returns.

    Keras makes it of the numbers that layers have in this process; those of other processes may
    differ. Files go by the places of layers, not by it.
    """
    variable._path = path
