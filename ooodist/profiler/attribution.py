"""From the recorded ops of a step to the seconds of its units and updates."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tensorflow as tf

from ooodist.profiler.occupancy import share_out
from ooodist.profiler.owners import Owner
from ooodist.profiler.recording.matching import EventsOfOp

# What TensorFlow puts into the name of a sum that it has made of several.
_REWRITTEN = re.compile(r"Leaf_\d+_")


def seconds_by_owner(
    events: EventsOfOp, owner_of: Mapping[tf.Operation, Owner]
) -> dict[Owner | None, float]:
    """Seconds that each owner's ops kept the compute stream busy in one recorded step.

    They add up to the time from the first op's start to the last one's end.

    Args:
        events: the op events of one call of the traced function, by the name of the op.
        owner_of: of the ops of the traced step.

    Returns:
        seconds by owner; under None those of ops that have no owner.
    """
    owner_of_name = {op.name: owner for op, owner in owner_of.items()}
    # If there are kernels of a GPU, what happens on the host meanwhile only starts them.
    on_device = any(event.execution is None for found in events.values() for event in found)
    return share_out(
        (event.start, event.end, _owner(name, owner_of_name))
        for name, found in events.items()
        for event in found
        if not on_device or event.execution is None
    )


def _owner(name: str, owner_of_name: Mapping[str, Owner]) -> Owner | None:
    """That of the op, or of the op below whose name it stands: the inside of a loop, say."""
    name = _REWRITTEN.sub("", name)
    while name and name not in owner_of_name:
        name = name.rpartition("/")[0]
    return owner_of_name.get(name)
