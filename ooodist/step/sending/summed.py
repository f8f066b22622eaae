"""What an exchange of a step has summed, and the ops that made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from ooodist.planner.data_parallel.plan import PlannedExchange


@dataclass(frozen=True)
class Exchanged:
    """One exchange of a traced step.

    Attributes:
        name: its name, the same on every rank.
        weights: names of the weights whose gradients it carries.
        num_bytes: the bytes that each rank contributes, as they are sent.
        op: the op that completes when the exchange does.
        total: what it has summed, as in :class:`Summed`.
    """

    name: str
    weights: tuple[str, ...]
    num_bytes: int
    op: tf.Operation = field(repr=False)
    total: tf.Tensor = field(repr=False)


class Summed(NamedTuple):
    """What an exchange has summed.

    Attributes:
        exchange: what it carries.
        total: the sum over all ranks; if it was scattered, flat, of this rank's slices.
        record: for reports; None if nothing is traced.
    """

    exchange: PlannedExchange
    total: tf.Tensor
    record: Exchanged | None
    is_scattered: bool = False


def handing_over(total: tf.Tensor) -> tf.Operation:
    """The op whose result the engine sends: the exchange starts right after it.

    Were it the op of the gradient itself, an exchange that waits for this start could overtake it
    during the few ops in between; and libraries keep the order that they have seen first.
    """
    summing = total.op.inputs[0].op if total.op.type == "Cast" else total.op
    return summing.inputs[0].op
