"""A digest that ties plans and profiles to the model that they were made for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ooodist.graph.units import Unit

HEX_DIGITS = 16


def model_digest(backward: Sequence[Unit]) -> str:
    """Returns 16 hexadecimal digits that identify the backward units and their gradients.

    They are the same for every step of a launch, on every rank and in every process. Two models
    with the same layers and sizes have the same digest, whatever their weights and the batch.

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
