"""Reports what became of each weight of a model that starts from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["copied", "widened", "narrowed", "identity", "fresh"]


@dataclass(frozen=True)
class TensorReport:
    """Tells what became of a weight of the child.

    Attributes:
        name: name of the weight.
        action: ``copied`` as it is; ``widened`` or ``narrowed`` from one of another shape;
            ``identity``, so that a new operator changes nothing at first; ``fresh``: newly drawn.
    """

    name: str
    action: Action
    parameters: int
    source: str = ""
