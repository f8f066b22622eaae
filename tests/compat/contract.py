"""What a private name of a library must do for us, and what a test says when it does not."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Contract:
    """One name, and a check of all that ooodist relies on.

    Attributes:
        name: as the library spells it.
        library: its name on the package index; its version is in the message.
        used_by: the function of ooodist.compat that stands before it.
        check: raises anything if the name is gone, or does something else.
    """

    name: str
    library: str
    used_by: Callable[..., Any]
    check: Callable[[], object]

    def __str__(self) -> str:
        return self.name

    def hold(self) -> None:
        """Raises AssertionError, which says what changed, where, and what it is for."""
        try:
            self.check()
        except Exception as error:
            version = importlib.metadata.version(self.library)
            where = f"{self.used_by.__module__}.{self.used_by.__name__}"
            raise AssertionError(
                f"{self.library} {version} has changed {self.name}: {type(error).__name__}: "
                f"{error}\nIt is used by {where}:\n{inspect.getdoc(self.used_by)}"
            ) from error
