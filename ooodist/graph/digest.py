"""A digest that ties plans and profiles to the model that they were made for."""

from __future__ import annotations

from collections.abc import Sequence

from ooodist.graph.units import Unit
from ooodist.util.digest import hex_digest

HEX_DIGITS = 16


def model_digest(backward: Sequence[Unit]) -> str:
    """16 hexadecimal digits that identify the backward units and their gradients.

    They are the same for every step of a launch, on every rank and in every process. Two models
    with the same layers and sizes have the same digest, whatever their weights and the batch.

    Args:
        backward: the units of one traced step, in baseline order.
    """

    def line(unit: Unit) -> str:
        variables, needs = ",".join(unit.variables), ",".join(sorted(unit.needs))
        return f"{unit.name}\t{unit.kind}\t{unit.gradient_bytes}\t{variables}\t{needs}\n"

    return hex_digest("".join(map(line, backward)), HEX_DIGITS)
