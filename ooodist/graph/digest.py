"""A digest by which plans and profiles know the model that they were made for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ooodist.graph.units import Unit

HEX_DIGITS = 16


def model_digest(backward: Sequence[Unit]) -> str:
    """16 hexadecimal digits that differ when the backward units or their gradients do.

    It is the same for each step of a launch, on each rank and in each process. Two models with
    the same layers and sizes have the same digest, whatever their weights, and whatever the batch.

    Args:
        backward: the units of one traced step, in baseline order.
    """
    digest = hashlib.sha256()
    for unit in backward:
        parts = (
            unit.name,
            unit.kind,
            str(unit.gradient_bytes),
            ",".join(unit.variables),
            ",".join(sorted(unit.needs)),
        )
        digest.update("\t".join(parts).encode() + b"\n")
    return digest.hexdigest()[:HEX_DIGITS]
