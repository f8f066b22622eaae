"""What a checkpoint has, be it a model in memory, a Keras file or a folder of parts.

Either form is written from any :class:`Content`: a Keras file by ``archive.write``, a part by
``parts.write_part``. One array at a time is in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ooodist.checkpoint.state import State

VARIABLES, BEST, EXTRAS, ASSETS, RANKS = "variables", "best", "extras", "assets", "ranks"


class Item(NamedTuple):
    """An array of a checkpoint.

    Attributes:
        kind: VARIABLES, BEST (weights at the best epoch), EXTRAS (what else layers put into a
            weights file), ASSETS (files of layers, as bytes), RANKS (what the steps of each rank
            keep for themselves, a row for each).
        key: of the first two kinds the index of a variable in the state, of extras the place in a
            weights file, of assets the name in a Keras file, of ranks ``owner/name``.
        name: in a part, for people.
    """

    kind: str
    key: Any
    name: str


class Content(ExitStack):
    """What a checkpoint has. What it has opened is closed at the end of a block.

    Attributes:
        state: what it says of the run, with its variables.
        config: the text of a Keras file's ``config.json``: how to make and compile the model.
        metadata: of its ``metadata.json``: the version of Keras.
        groups: of a weights file, each with the name of its layer, or "".
        num_best: how many weights of the best epoch there are: all or none.
        extras: the keys of this kind.
        assets: the keys of this kind.
        ranks: the keys of this kind.
    """

    state: State
    config: str
    metadata: str
    groups: Mapping[str, str]
    num_best: int
    extras: Collection[str]
    assets: Collection[str]
    ranks: Collection[str]

    @abstractmethod
    def value(self, kind: str, key: Any) -> np.ndarray:
        """The value of an array, see :class:`Item`. Raises UserError if it is damaged."""

    def by_rank(self) -> Mapping[str, np.ndarray]:
        """What the steps of each rank keep for themselves, by name and then by rank."""
        return {key: self.value(RANKS, key) for key in self.ranks}

    def items(self) -> Iterator[Item]:
        """Yields all arrays."""
        paths = [variable.path for variable in self.state.variables]
        yield from (Item(VARIABLES, index, path) for index, path in enumerate(paths))
        best = paths[: self.num_best]
        yield from (Item(BEST, index, f"best/{path}") for index, path in enumerate(best))
        for kind, keys in ((EXTRAS, self.extras), (ASSETS, self.assets)):
            yield from (Item(kind, key, f"file/{key}") for key in keys)
        yield from (Item(RANKS, key, f"rank/{key}") for key in self.ranks)

    def read(self, index: int) -> np.ndarray:
        """The value of a variable, by its index in the state. Raises UserError."""
        return self.value(VARIABLES, index)

    def read_best(self, index: int) -> np.ndarray:
        """The value of a weight at the best epoch, by its index. Raises UserError."""
        return self.value(BEST, index)

    def best(self) -> list[np.ndarray] | None:
        """All weights of the best epoch; None if there are none. Raises UserError."""
        return [self.read_best(index) for index in range(self.num_best)] or None
