"""The form in which a job file names an optimizer, loss or metric of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NamedArguments:
    """A Keras object by name and arguments: ``{name: sgd, momentum: 0.9}``, or just ``sgd``."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
