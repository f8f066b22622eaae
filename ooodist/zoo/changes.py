"""Finds model files that differ from the index of a zoo, and reads them into it."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline
from ooodist.util.quantity import counted
from ooodist.zoo import entry as entries
from ooodist.zoo.entry import ENDING, Meta
from ooodist.zoo.index import Index, Row
from ooodist.zoo.storage import State, Storage

logger = logging.getLogger("ooodist")

READ_AT_ONCE = 100  # files read before the index is written
REQUESTS_AT_ONCE = 16  # of a bucket, where a file takes five, and each as long as the way there


class Changes:
    """Tracks the changes of the files in a storage.

    A damaged file is logged once, and is not reported again until it changes.

    Args:
        storage: files of the zoo.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._damaged: dict[str, State] = {}

    def find(self, known: dict[str, State]) -> tuple[dict[str, State], list[str]]:
        """Compares the files with the index.

        Args:
            known: states of the model files according to the index, by id.

        Returns:
            The states of new or changed files by id, and the ids of models whose file is gone.

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
        """Reads these files into the index, in batches that survive if the process is killed."""
        if len(new) > READ_AT_ONCE:
            address = self._storage.address
            logger.info("zoo %s: reads %s for the index", address, counted(len(new), "model"))
        models = [*new]
        versions = {model: state.version for model, state in new.items()}
        with ThreadPoolExecutor(1 if self._storage.is_local else REQUESTS_AT_ONCE) as pool:
            for start in range(0, len(models), READ_AT_ONCE):
                some = models[start : start + READ_AT_ONCE]
                read = pool.map(self._read, some, [new[model] for model in some])
                index.put(filter(None, read), versions)

    def _read(self, model: str, state: State) -> tuple[Row, Outline] | None:
        """The row and outline of a model; None if its file is gone or damaged."""
        try:
            with self._storage.open(model) as file:
                meta, outline = entries.read_for_index(file)
            created = self._storage.created(model)
        except FileNotFoundError:
            return None
        except (UserError, OSError) as error:
            place = self._storage.address
            logger.warning("zoo %s: %s%s is left out: %s", place, model, ENDING, error)
            self._damaged[model] = state
            return None
        return unused_row(model, meta, outline, state.bytes, created), outline


def unused_row(model: str, meta: Meta, outline: Outline, size: int, created: float) -> Row:
    """The row of a model that was never used.

    Args:
        model: its id.
        meta: its metadata.
        outline: its operators and the shapes of their weights.
        size: size of the file in bytes.
        created: when the file was written, in Unix seconds.
    """
    shapes = [shape for operator in outline for shape in operator.shapes]
    return Row(model, meta, size, sum(map(math.prod, shapes)), created, last_used=created)
