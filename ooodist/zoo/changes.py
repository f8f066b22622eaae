"""Where the files of a zoo are not as its index says, and what the index has to know of them."""

from __future__ import annotations

import logging
import math

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline, outline_of
from ooodist.zoo import entry as entries
from ooodist.zoo.entry import ENDING, Entry
from ooodist.zoo.index import Index, Row
from ooodist.zoo.storage import State, Storage

logger = logging.getLogger("ooodist")

READ_AT_ONCE = 100  # files, between which the index is written


class Changes:
    """What changed in a storage. A damaged file is logged once, and read again if it changes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._damaged: dict[str, State] = {}

    def find(self, known: dict[str, State]) -> tuple[dict[str, State], list[str]]:
        """Where the files are not as the index says.

        Args:
            known: states of the files of models in the index, by id.

        Returns:
            States of files that are new or others than before, and models without a file.

        Raises:
            UserError: the storage cannot be read.
        """
        try:
            there = self._storage.states()
        except OSError as error:
            raise UserError(f"zoo {self._storage.address} cannot be read: {error}") from error
        self._damaged = {m: state for m, state in self._damaged.items() if there.get(m) == state}
        expected = known | self._damaged
        new = {model: state for model, state in there.items() if expected.get(model) != state}
        return new, [model for model in known if model not in there]

    def read(self, new: dict[str, State], index: Index) -> None:
        """Puts models into the index as their files say; what is done stays if this is killed."""
        if len(new) > READ_AT_ONCE:
            address = self._storage.address
            logger.info("zoo %s: %d models are read for the index", address, len(new))
        models = [*new.items()]
        versions = {model: state.version for model, state in models}
        for start in range(0, len(models), READ_AT_ONCE):
            some = models[start : start + READ_AT_ONCE]
            index.put(filter(None, (self._read(model, state) for model, state in some)), versions)

    def _read(self, model: str, state: State) -> tuple[Row, Outline] | None:
        """What the index has to know of a model; None: it is gone, or damaged."""
        try:
            with self._storage.open(model) as file:
                read = entries.read(file)
            created = self._storage.created(model)
        except FileNotFoundError:
            return None
        except (UserError, OSError) as error:
            place = self._storage.address
            logger.warning("zoo %s: %s%s is left out: %s", place, model, ENDING, error)
            self._damaged[model] = state
            return None
        return unused_row(model, read, state.bytes, created), outline_of(read.graph)


def unused_row(model: str, read: Entry, size: int, created: float) -> Row:
    """The row of a model that was never used: its id, what its file says, bytes, unix seconds."""
    shapes = [weight.shape for node in read.graph.nodes for weight in node.weights]
    return Row(model, read.meta, size, sum(map(math.prod, shapes)), created, last_used=created)
