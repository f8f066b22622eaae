"""What Keras keeps of a model, and of what it was compiled with."""

from __future__ import annotations

from typing import Any

import keras

_INSIDE_FIT = "_use_cached_eval_dataset"


def layers_of(
    model: keras.Model, *, include_self: bool = True, recursive: bool = True
) -> list[keras.Layer]:
    """The layers of a model, also those inside of other layers: ``Layer._flatten_layers``.

    The public ``layers`` has only those of the model itself, and a layer has none. The name is as
    old as tf.keras.
    """
    found: list[keras.Layer] = list(
        model._flatten_layers(include_self=include_self, recursive=recursive)
    )
    return found


def build_with(model: keras.Model, batch: Any) -> None:
    """Makes weights, metrics and optimizer state as the first step of ``fit`` would.

    This is ``Trainer._symbolic_build`` (since Keras 3.0), which ``fit`` calls itself. The public
    ``build`` makes neither the metrics nor the optimizer's state, and needs shapes that a model of
    several inputs does not tell.

    Args:
        model: compiled.
        batch: as the data set yields it.
    """
    model._symbolic_build(data_batch=batch)


def compiled_loss(model: keras.Model) -> Any:
    """The object that ``compile`` makes of the losses: ``Trainer._compile_loss`` (since Keras 3.0).

    A new one at each ``compile``; ``model.loss`` is what the user gave, which may be the same.
    """
    return model._compile_loss


def compiled_metrics(model: keras.Model) -> Any:
    """The object that ``compile`` makes of the metrics: ``Trainer._compile_metrics`` (Keras 3.0).

    None without metrics. ``model.metrics`` has it among others, and does not say which it is.
    """
    return model._compile_metrics


def metrics_given_to_compile(model: keras.Model) -> list[Any]:
    """What ``compile`` was given as metrics, in one list: ``CompileMetrics._user_metrics``.

    Weighted ones (``_user_weighted_metrics``) come behind (since Keras 3.0). Before the first step
    ``model.metrics`` does not have them yet.
    """
    compiled = compiled_metrics(model)
    if compiled is None:
        return []
    given: list[Any] = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return given


def restored_epoch(model: keras.Model) -> int | None:
    """With which epoch ``fit`` goes on, as BackupAndRestore has set it: ``_initial_epoch``.

    None: it has not. Only the callback and ``fit`` know of it.
    """
    epoch: int | None = model._initial_epoch
    return epoch


def set_restored_epoch(model: keras.Model, epoch: int) -> None:
    """Has ``fit`` go on with this epoch; called in ``on_train_begin``, as BackupAndRestore does."""
    model._initial_epoch = epoch


def is_inside_fit(arguments: dict[str, Any]) -> bool:
    """Whether ``fit`` has called ``evaluate`` with these arguments, for its validation data.

    ``fit`` says so with ``_use_cached_eval_dataset=True`` (since Keras 3.0), which is not public,
    and neither is another way to tell.
    """
    return bool(arguments.get(_INSIDE_FIT, False))
