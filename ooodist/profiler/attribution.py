"""Attributes the time of a step's recorded ops to its units and updates."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tensorflow as tf

from ooodist.profiler.occupancy import share_out
from ooodist.profiler.owners import Owner
from ooodist.profiler.recording.matching import EventsOfOp

# What TensorFlow inserts into the name of a sum into which it has merged several.
_REWRITTEN = re.compile(r"Leaf_\d+_")


def seconds_by_owner(
    events: EventsOfOp, owner_of: Mapping[tf.Operation, Owner]
) -> dict[Owner | None, float]:
    """The seconds that each owner's ops kept the compute stream busy in a recorded step.

    They add up to the time from the start of the first op to the end of the last.

    Args:
        events: the op events of one call of the traced function, by op name.
        owner_of: the owners of the ops of the traced step.

    Returns:
        seconds by owner; under None those of ops without an owner.
    """
    owner_of_name = {op.name: owner for op, owner in owner_of.items()}
    # If there are GPU kernels, the host meanwhile only prepares them.
    on_gpu = any(event.is_kernel for found in events.values() for event in found)
    return share_out(
        (event.start, event.end, _owner(name, owner_of_name))
        for name, found in events.items()
        for event in found
        if not on_gpu or event.is_kernel
    )


def _owner(name: str, owner_of_name: Mapping[str, Owner]) -> Owner | None:
    """The owner of the op, or of the op that it is nested in (as within a loop)."""
    name = _REWRITTEN.sub("", name)
    while name and name not in owner_of_name:
        name = name.rpartition("/")[0]
    return owner_of_name.get(name)
