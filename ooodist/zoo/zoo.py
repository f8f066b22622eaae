"""A zoo: trained models in a folder or bucket, from which new models start.

    zoo/resnet20-3f2a9c81d0aa.keras    a model; see entry.py, and storage.py for all files
    zoo/index.sqlite                   see index.py; a bucket's is in ~/.cache/ooodist/zoo/
    zoo/summary.json.gz                what others need to build their own index; see summary.py

Any number of processes may use a zoo at the same time. On one machine, changes are serialized by a
lock. Machines that share a bucket see each other's changes when they list it, and may exceed its
capacity if they add models at the same moment.
"""

from __future__ import annotations

import builtins
import logging
import math
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.operators import Outline
from ooodist.transfer.matching.candidates import bucket_of, candidates
from ooodist.transfer.matching.match import Prepared, prepare
from ooodist.util.digest import hex_digest
from ooodist.zoo import entry as entries
from ooodist.zoo import metrics, retention, summary
from ooodist.zoo.changes import Changes, unused_row
from ooodist.zoo.entry import ENDING, Checked, Entry, Meta
from ooodist.zoo.index import Index, Row, unpacked
from ooodist.zoo.storage import Storage

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("ooodist")

BUCKETS = 10  # of similarity
LISTING_SECONDS = 10.0  # for which queries rely on a bucket's last listing


@dataclass(frozen=True)
class Wanted:
    """The conditions that a model must meet to be found.

    Attributes:
        task: the exact task; empty for any.
        dataset: the exact data set; empty for any.
        tags: tags that the model must all have.
        user: the user who asks, who must be in the model's ``access`` unless that is empty; None
            for the owner of the zoo, who may use all models.
    """

    task: str = ""
    dataset: str = ""
    tags: tuple[str, ...] = ()
    user: str | None = None


@dataclass(frozen=True)
class Found:
    """A model that a query found.

    Attributes:
        id: id of the model.
        score: similarity to the new model, above 0, at most 1.
        meta: metadata of the model.
    """

    id: str
    score: float
    meta: Meta


class Zoo:
    """A zoo of trained models at an address.

    Args:
        address: a folder, or any address that fsspec knows, such as ``s3://bucket/zoo``.
        capacity_bytes: most bytes that all model files may have together; None for no limit.
        index: SQLite file of the index, on a local disk; None for the default place (see above),
            which must not be used for a folder on a network drive.
        create: whether a missing folder is created, and no error.

    Attributes:
        address: as given.
        capacity_bytes: as given.

    Raises:
        UserError: the folder is missing, no driver is installed for the address, or the zoo or its
            index cannot be read.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        capacity_bytes: int | None = None,
        index: Path | None = None,
        create: bool = True,
    ) -> None:
        self.address = str(address)
        self.capacity_bytes = capacity_bytes
        self._storage = Storage(self.address, create=create)
        self._changes = Changes(self._storage)
        self._prepared: dict[str, Prepared] = {}
        self._uncounted = False
        self._listed = -math.inf
        self._index = _open_index([index] if index else self._storage.index_files())
        self.refresh()

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted the index, or the folder with it."""
        return self._index.file.exists()

    def close(self) -> None:
        """Closes the index."""
        self._index.close()

    def __enter__(self) -> Zoo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self,
        file: Path | BinaryIO,
        *,
        replace: str | None = None,
        check: Callable[[BinaryIO], Checked] = entries.check,
    ) -> str:
        """Adds a model and returns its id; adding it again is no error.

        Args:
            file: a file written by :func:`ooodist.zoo.entry.write`, or such a file opened for
                reading; every byte is checked.
            replace: id of a model that is removed once this one has been added.
            check: checks the file, and raises UserError.

        Raises:
            UserError: the file is damaged, the model is far worse than others of its task and data
                set, it is worth less than the models it would displace, or it cannot be written.
        """
        if isinstance(file, Path):
            if not file.is_file():
                raise UserError(f"there is no model file {file}; check the path")
            with file.open("rb") as opened:
                return self.add(opened, replace=replace, check=check)
        added = check(file)
        model = f"{_readable(added.meta.name)}-{added.digest[:12]}"
        self.refresh()
        if self._index.row(model) is not None:
            return model
        size = file.seek(0, os.SEEK_END)
        row = unused_row(model, added.meta, added.outline, size, time.time())
        try:
            with self._storage.incomplete(file) as copy, self._index.exclusively():
                leaving = self._leaving(row, replace)
                self._storage.complete(copy, model)
                version = self._storage.state(model).version
                try:
                    self._index.put([(row, added.outline)], {model: version})
                except sqlite3.Error:
                    self._storage.delete(model)
                    raise
                self._remove(leaving)
                summary.update(self._index, self._storage)
        except (OSError, sqlite3.Error) as error:
            reason = f"model {model} cannot be written to zoo {self.address}: {error}"
            raise UserError(reason) from error
        return model

    def add_model(self, model: keras.Model, meta: Meta, graph: Graph | None = None) -> str:
        """Adds a Keras model and returns its id; raises as :meth:`add`.

        Args:
            model: the model, which must not be trained meanwhile.
            meta: metadata of the model.
            graph: graph of the model, if it was already made.
        """
        if graph is None:
            from ooodist.transfer.graph.keras_graph import graph_of  # imports TensorFlow

            graph = graph_of(model)
        with tempfile.TemporaryDirectory(prefix="ooodist-zoo-") as folder:
            file = Path(folder, f"model{ENDING}")
            entries.write(file, model, meta, graph)
            return self.add(file)

    def query(self, outline: Outline, wanted: Wanted, count: int = 1) -> list[Found]:
        """The best parents for a new model, best first.

        Similarities fall into ten buckets of equal width. Models in a higher bucket come first;
        within a bucket they are ordered by quality (see metrics.py), then similarity, then age, the
        newest first. Models that have nothing in common with the new one are not found.

        Args:
            outline: outline of the new model.
            wanted: conditions that the models must meet.
            count: most models to return.
        """
        if count < 1:
            raise UserError(f"count is {count}; it must be at least 1")
        if self._storage.is_local or time.monotonic() - self._listed > LISTING_SECONDS:
            self.refresh()
        rows = {
            row.id: row
            for row in self._index.rows(wanted.task, wanted.dataset)
            if set(wanted.tags) <= set(row.meta.tags) and may_use(row.meta, wanted.user)
        }
        child = prepare(outline)
        prepared = self._prepare(rows)
        pool = list(prepared)
        found = candidates(child, [*prepared.values()], buckets=BUCKETS, count=count)
        quality = metrics.Quality(row.meta for row in rows.values())

        def rank(found: Found) -> tuple[float, ...]:
            measured = quality.of(found.meta)
            good = -1.0 if measured is None else measured
            return bucket_of(found.score, BUCKETS), good, found.score, rows[found.id].created

        ranked = sorted(
            (Found(pool[at], score, rows[pool[at]].meta) for at, score in found if score > 0),
            key=rank,
            reverse=True,
        )
        return ranked[:count]

    def entry(self, model: str) -> Entry:
        """The entry of a model, without weights. Raises UserError if it cannot be read."""
        with self._opened(model) as file:
            return entries.read(file)

    def meta(self, model: str) -> Meta:
        """The metadata of a model as its file has it now. Raises as :meth:`entry`."""
        with self._opened(model) as file:
            return entries.read_for_index(file)[0]

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        """The entry and the weights of a model; counts and raises as :meth:`open`."""
        with self.open(model) as file:
            return entries.read_with_weights(file)

    def open(self, model: str) -> BinaryIO:
        """Opens the file of a model for reading, which counts as a use.

        A use that cannot be recorded, as on a full disk, is logged once. Raises UserError.
        """
        file = self._opened(model)
        try:
            self._index.count_use(model, time.time())
        except sqlite3.OperationalError as error:
            if not self._uncounted:
                logger.warning("zoo %s: uses of models are not counted: %s", self.address, error)
            self._uncounted = True
        return file

    def size(self, model: str) -> int:
        """The bytes of a model's file. Raises UserError if there is no such model."""
        return self._known(model).bytes

    def list(self) -> builtins.list[Row]:
        """The rows of all models, ordered by id."""
        self.refresh()
        return self._index.rows()

    def evict(self, model: str) -> None:
        """Deletes a model; raises UserError if it does not exist or cannot be deleted."""
        self._known(model)
        try:
            with self._index.exclusively():
                self._remove([model])
        except OSError as error:
            reason = f"model {model} of {self.address} cannot be deleted: {error}"
            raise UserError(reason) from error

    def refresh(self) -> None:
        """Brings the index up to date with the files.

        A damaged file is logged once and left out. Leftovers of killed writers that are more than
        an hour old are deleted.
        """
        try:
            changed = self._changes.find(self._index.states())
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked or the like, not damaged
                reason = f"the index of zoo {self.address} cannot be used: {error}"
                raise UserError(reason) from error
            self._index.reopen()
            changed = self._changes.find(self._index.states())
        if any(changed):
            try:
                with self._index.exclusively():
                    # Another process may have done it meanwhile.
                    new, gone = self._changes.find(self._index.states())
                    self._index.delete(gone)
                    for model in {*new, *gone}:
                        self._prepared.pop(model, None)
                    for model in summary.take(self._index, self._storage, new):
                        del new[model]
                    self._changes.read(new, self._index)
                    summary.update(self._index, self._storage)
            except sqlite3.OperationalError as error:  # as on a full disk; the old rows are used
                logger.warning(
                    "zoo %s: what is new in it is not seen, as its index cannot be written: %s",
                    self.address,
                    error,
                )
        self._listed = time.monotonic()

    # The index and the files

    def _remove(self, models: Iterable[str]) -> None:
        for model in models:
            self._storage.delete(model)
            self._index.delete([model])
            self._prepared.pop(model, None)

    def _opened(self, model: str) -> BinaryIO:
        self._known(model)  # an unknown id could be a path to elsewhere
        try:
            return self._storage.open(model)
        except OSError as error:
            raise UserError(f"model {model} of {self.address} cannot be read: {error}") from error

    def _known(self, model: str) -> Row:
        row = self._index.row(model)
        if row is None:
            self.refresh()
            row = self._index.row(model)
        if row is None:
            raise UserError(
                f"there is no model {model[:200]!r} in {self.address}; python -m ooodist.zoo list "
                "shows which there are"
            )
        return row

    # Choice

    def _leaving(self, new: Row, replace: str | None) -> builtins.list[str]:
        """The ids of models to remove for a new one. Raises UserError if it is refused."""
        rows = [row for row in self._index.rows() if row.id not in (new.id, replace)]
        retention.check_metric(new.meta, [row.meta for row in rows])
        leaving = [] if replace is None else [replace]
        if self.capacity_bytes is not None:
            leaving += retention.leaving(rows, new, self.capacity_bytes, time.time())
        if leaving:
            logger.info("zoo %s: %s leave for %s", self.address, ", ".join(leaving), new.id)
        return leaving

    def _prepare(self, models: Collection[str]) -> dict[str, Prepared]:
        """These models prepared for matching, without those that no longer exist."""
        known = dict(self._prepared)  # a copy, as other threads add to it
        missing = [model for model in models if model not in known]
        by_content: dict[bytes, Prepared] = {}
        for model, content in self._index.outlines(missing).items():
            if content not in by_content:
                by_content[content] = prepare(unpacked(content), hex_digest(content))
            known[model] = self._prepared[model] = by_content[content]
        return {model: known[model] for model in models if model in known}


def may_use(meta: Meta, user: str | None) -> bool:
    """Whether a user may use a model; None is the owner of the zoo, who may use all."""
    return user is None or not meta.access or user in meta.access


def _open_index(places: Sequence[Path]) -> Index:
    """Opens the index at the first usable place."""
    *preferred, last = places
    for place in preferred:
        try:
            return Index(place)
        except UserError as error:
            logger.warning("%s; another one is used meanwhile: %s", error, last)
    return Index(last)


def _readable(name: str) -> str:
    """Converts a name to a form that is safe in file names."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "model"
