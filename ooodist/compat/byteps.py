"""What our build of BytePS adds (patches/): places (priorities), and whether it has NCCL."""

from __future__ import annotations

import inspect

import tensorflow as tf
from byteps.tensorflow import ops


def has_places() -> bool:
    """Whether the installed BytePS was built with this version's patches."""
    return "place" in inspect.signature(ops._push_pull).parameters


def has_nccl() -> bool:
    """Whether the installed BytePS was built for GPUs; without our patches, it was."""
    return ops.nccl_built() if hasattr(ops, "nccl_built") else True


def push_pull_sum(tensor: tf.Tensor, name: str, place: int) -> tf.Tensor:
    """The sum over all ranks: ``ops._push_pull`` (BytePS 0.2.5.post15).

    The public ``push_pull`` takes no place, and puts further ops around the exchange.

    Args:
        tensor: the same shape and dtype on all ranks.
        name: name of the exchange. With an empty scope the key would depend on where in the model
            the op is created.
        place: of the waiting tensors, the one with the smallest place is sent first; -1: in the
            order in which names were first used.
    """
    return ops._push_pull(tensor, scope="ooodist.", name=name, place=place)
