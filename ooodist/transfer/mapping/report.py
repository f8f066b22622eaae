"""What became of each weight of a model that starts from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["copied", "widened", "narrowed", "identity", "fresh"]


@dataclass(frozen=True)
class TensorReport:
    """What became of a weight of the child.

    Attributes:
        name: of the weight.
        action: ``copied`` as it is; ``widened`` or ``narrowed`` from one of another shape;
            ``identity``, so that a new operator changes nothing at first; ``fresh``: its own.
        parameters: how many numbers it has.
        source: the parent's weight; empty if there is none.
    """

    name: str
    action: Action
    parameters: int
    source: str = ""
