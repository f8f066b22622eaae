"""How a job file names an optimizer, a loss or a metric of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NamedArguments:
    """Something of Keras by name: ``{name: sgd, momentum: 0.9}``, or only ``sgd``."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
