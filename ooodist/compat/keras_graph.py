"""Private state of Keras's functional models and symbolic tensors."""

from __future__ import annotations

from typing import Any


def function_nodes(model: Any) -> list[Any] | None:
    """The calls of a functional model, or keras.Function, in the order of execution.

    They are in ``Function._nodes_by_depth`` (as old as Keras; the deepest run first). No public
    list includes shared layers and operations.

    Returns:
        Keras's nodes, each with ``operation``, ``input_tensors``, ``outputs`` and ``arguments``
        (``args`` and ``kwargs``), without those of the inputs; None for a model without a graph.
    """
    by_depth = getattr(model, "_nodes_by_depth", None)
    if by_depth is None:
        return None
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if not node.is_input
    ]


def inputs_structure(function: Any) -> Any:
    """The inputs as they were given, nested: ``Function._inputs_struct`` (Keras 3.0).

    The public ``inputs`` is flat.
    """
    return function._inputs_struct


def mask_of(tensor: Any) -> Any:
    """The mask that Keras has attached to a tensor, symbolic like the tensor, or None.

    Keras passes masks on as the attribute ``_keras_mask`` (as old as tf.keras); only a custom
    layer gets it, as an argument.
    """
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask, as a layer with ``compute_mask`` does: ``_keras_mask``."""
    tensor._keras_mask = mask
