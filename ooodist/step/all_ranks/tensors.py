"""Means, sums and gathers of tensors over all ranks: what a program exchanges besides gradients.

Inside a traced step they are differentiable, so a loss can compare the samples of all workers, as
the in-batch negatives of a contrastive loss::

    rank 0   a0 -> [ allgather ] -> a0 a1 -> loss 0      d loss 0 / d a0 ─┐
    rank 1   a1 -> [           ] -> a0 a1 -> loss 1      d loss 1 / d a0 ─┴─ sum -> rank 0

Each slope is that of the sum of all ranks' losses. As weights get the mean of all ranks' gradients,
they get that of the mean of the losses, which is what one process computes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ooodist import engines
from ooodist.compat.keras_layer import infers_shapes
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step.autograph import not_converted


@not_converted
def allreduce(tensor: Any, *, average: bool = True) -> tf.Tensor:
    """The mean of a tensor over all ranks, or the sum; every rank gets the same.

    All ranks call it, with the same shape and dtype. In a pipeline it only works outside
    of ``tf.function``. With engine collective, a shape that is not known when a step is traced
    must stay the same: leave out a last batch that is smaller.

    Args:
        tensor: numbers, of any shape; anything that ``tf.convert_to_tensor`` accepts.
        average: whether the sum is divided by the number of ranks.

    Raises:
        UserError: the dtype cannot be added up, or is of integers, which have no mean; or a step
            of a pipeline calls it.
    """
    tensor = _numbers(tensor, "allreduce")
    if average and not tensor.dtype.is_floating:
        raise UserError(
            f"allreduce: the mean of {tensor.dtype.name} would be rounded; cast it to a float, or "
            "take average=False"
        )
    engine = engines.current()
    total = _sum_named(engine, tensor, "allreduce")
    return total / engine.size if average else total


@not_converted
def allgather(tensor: Any) -> tf.Tensor:
    """The tensors of all ranks one after the other, by rank, joined along their first axis.

    All ranks call it, with the same shape and dtype; for the rest see :func:`allreduce`.

    Args:
        tensor: numbers, with at least one axis; anything that ``tf.convert_to_tensor`` accepts.

    Raises:
        UserError: the dtype cannot be exchanged, the tensor has no axis, or a step of a pipeline
            calls it.
    """
    tensor = _numbers(tensor, "allgather")
    if tensor.shape.rank == 0:
        raise UserError("allgather: a scalar has no axis to join along; give it one, as in [x]")
    engine = engines.current()
    zeros = tf.zeros_like(tensor)
    own = tf.stack([tensor if rank == engine.rank else zeros for rank in range(engine.size)])
    every = _sum_named(engine, own, "allgather")
    return tf.concat(tf.unstack(every, engine.size), axis=0)


def barrier() -> None:
    """Waits until all ranks have called it; call it outside of ``tf.function``."""
    engines.current().barrier()


def sum_over_ranks(
    engine: Engine, tensor: tf.Tensor, name: str, *, any_shape: bool = False
) -> tf.Tensor:
    """Sums a tensor over all ranks; the gradient is that of the sum of all ranks' losses.

    Args:
        engine: the engine in use.
        tensor: of the same shape and dtype on all ranks.
        name: the exchange's key; see :meth:`Engine.sum_in_graph`.
        any_shape: whether the name stands for tensors of any shape.
    """

    def exchanged(tensor: tf.Tensor, name: str) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.constant(engine.all_reduce(tensor.numpy(), "sum"))
        if infers_shapes():
            return tensor
        return engine.sum_in_graph(tensor, name, any_shape=any_shape)

    @tf.custom_gradient
    def total(tensor: tf.Tensor) -> Any:
        def gradient(slope: tf.Tensor) -> tf.Tensor:
            return exchanged(slope, f"{name}.gradient")

        return exchanged(tensor, name), gradient

    return total(tensor)


def _sum_named(engine: Engine, tensor: tf.Tensor, function: str) -> tf.Tensor:
    """As :func:`sum_over_ranks`; each shape is an exchange of its own, if it is known."""
    if not tensor.shape.is_fully_defined():
        name = f"{function}.{tensor.dtype.name}.any_shape.{tensor.shape}"
        return sum_over_ranks(engine, tensor, name, any_shape=True)
    return sum_over_ranks(engine, tensor, f"{function}.{tensor.dtype.name}.{tensor.shape}")


def _numbers(tensor: Any, function: str) -> tf.Tensor:
    found = tf.convert_to_tensor(tensor)
    if not (found.dtype.is_floating or found.dtype.is_integer):
        raise UserError(
            f"{function}: a tensor of {found.dtype.name} cannot be added up over the ranks; cast "
            "it to floats or integers"
        )
    return found
