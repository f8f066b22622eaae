"""A zoo: trained models in a folder or bucket, from which a new one finds its start.

    zoo/resnet20-3f2a9c81d0aa.keras    a model; see entry.py, and storage.py for all files
    zoo/index.sqlite                   see index.py; of a bucket it is in ~/.cache/ooodist/zoo/
    zoo/summary.json.gz                what others need for an index of their own; see summary.py

Any number of processes may use a zoo at a time. On one machine, whatever changes a zoo waits for a
lock. Machines that share a bucket see what others did when they list it, and may exceed its
capacity by what they add in the same moment.
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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.operators import Outline, outline_of
from ooodist.transfer.matching.candidates import bucket_of, candidates
from ooodist.transfer.matching.match import Prepared, prepare
from ooodist.zoo import clusters, retention, summary
from ooodist.zoo import entry as entries
from ooodist.zoo.changes import Changes, unused_row
from ooodist.zoo.entry import ENDING, Entry, Meta
from ooodist.zoo.index import Index, Row, unpacked
from ooodist.zoo.storage import Storage

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("ooodist")

BUCKETS = 10  # of similarity
LISTING_SECONDS = 10.0  # that the listing of a bucket is taken to be true for a query


@dataclass(frozen=True)
class Wanted:
    """Which models may be found.

    Attributes:
        task: exactly this; empty: any.
        dataset: exactly this; empty: any.
        tags: all of them must be among the model's.
        user: who asks: models whose ``access`` names others only are not found. None is the owner
            of the zoo, who may use all.
    """

    task: str = ""
    dataset: str = ""
    tags: tuple[str, ...] = ()
    user: str | None = None


@dataclass(frozen=True)
class Found:
    """A model that was found.

    Attributes:
        id: of the model.
        score: its similarity, above 0, at most 1.
        meta: what is said about it.
    """

    id: str
    score: float
    meta: Meta


class Zoo:
    """The models at an address.

    Args:
        address: a folder, which is made if there is none, or any address that fsspec knows, as
            ``s3://bucket/zoo``.
        capacity_bytes: that the models' files may have together; None: any number.
        index: SQLite file of the index, which must be on a disk of this machine; None: see above,
            which is wrong for a folder on a network drive.

    Raises:
        UserError: there is no driver for the address, or nothing can be read there.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        capacity_bytes: int | None = None,
        index: Path | None = None,
    ) -> None:
        self.address = str(address)
        self.capacity_bytes = capacity_bytes
        self._storage = Storage(self.address)
        self._changes = Changes(self._storage)
        self._prepared: dict[str, Prepared] = {}
        self._uncounted = False
        self._listed = -math.inf
        self._index = _open_index([index] if index else self._storage.index_files())
        self.refresh()

    def close(self) -> None:
        """Ends the use of the index."""
        self._index.close()

    def __enter__(self) -> Zoo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, file: Path | BinaryIO, *, replace: str | None = None) -> str:
        """Adds a model and returns its id; one that is there already is no error.

        Args:
            file: as :func:`ooodist.zoo.entry.write` makes it, or one that is open; every byte of
                it is checked.
            replace: id of a model that leaves the zoo once this one is in it.

        Raises:
            UserError: the file is damaged, its accuracy is far below that of others of its task and
                data set, it is worth less than what would have to go for it, or cannot be written.
        """
        if isinstance(file, Path):
            if not file.is_file():
                raise UserError(f"there is no model file {file}; check the path")
            with file.open("rb") as opened:
                return self.add(opened, replace=replace)
        added = entries.check(file)
        model = f"{_readable(added.meta.name)}-{entries.digest(file)[:12]}"
        self.refresh()
        if self._index.row(model) is not None:
            return model
        row = unused_row(model, added, file.seek(0, os.SEEK_END), time.time())
        try:
            with self._storage.incomplete(file) as copy, self._index.exclusively():
                leaving = self._leaving(row, replace)
                self._storage.complete(copy, model)
                version = self._storage.state(model).version
                try:
                    self._index.put([(row, outline_of(added.graph))], {model: version})
                except sqlite3.Error:
                    self._storage.delete(model)
                    raise
                self._remove(leaving)
                clusters.update(self._index, self._prepare)
                summary.update(self._index, self._storage)
        except (OSError, sqlite3.Error) as error:
            reason = f"model {model} cannot be written to zoo {self.address}: {error}"
            raise UserError(reason) from error
        return model

    def add_model(self, model: keras.Model, meta: Meta, graph: Graph | None = None) -> str:
        """Adds a Keras model; see :meth:`add`.

        Args:
            model: is not trained meanwhile.
            meta: what is said about it.
            graph: of the model, if it was made already.
        """
        if graph is None:
            from ooodist.transfer.graph.keras_graph import graph_of  # imports TensorFlow

            graph = graph_of(model)
        with tempfile.TemporaryDirectory(prefix="ooodist-zoo-") as folder:
            file = Path(folder, f"model{ENDING}")
            entries.write(file, model, meta, graph)
            return self.add(file)

    def query(self, outline: Outline, wanted: Wanted, count: int = 1) -> list[Found]:
        """Returns the best starts for a new model, the best first.

        Similarities are in ten buckets of equal width. Models of a higher bucket come first; in a
        bucket the more accurate one, then the more similar one, then the newer one. Models that
        have nothing in common with the new one are not found.

        In a zoo of more than 200 models, only members of the clusters next to the new one are
        compared with it.

        Args:
            outline: of the new model.
            wanted: which models may be found.
            count: of models to return, if there are so many.
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
        pool = list(rows)
        if len(pool) > clusters.LEAST_MODELS:
            medoid_of = self._index.clusters()
            pool = clusters.near(child, pool, medoid_of, self._prepare, 2 * count)
        prepared = self._prepare(pool)
        pool = [model for model in pool if model in prepared]
        found = candidates(child, [prepared[model] for model in pool], buckets=BUCKETS, count=count)

        def rank(found: Found) -> tuple[float, ...]:
            accuracy = -1.0 if found.meta.accuracy is None else found.meta.accuracy
            return bucket_of(found.score, BUCKETS), accuracy, found.score, rows[found.id].created

        ranked = sorted(
            (Found(pool[at], score, rows[pool[at]].meta) for at, score in found if score > 0),
            key=rank,
            reverse=True,
        )
        return ranked[:count]

    def entry(self, model: str) -> Entry:
        """What the file of a model says. Raises UserError: there is no such model."""
        with self._opened(model) as file:
            return entries.read(file)

    def weights(self, model: str) -> dict[str, np.ndarray]:
        """The weights of a model by name, which counts as a use. Raises UserError."""
        return self.fetch(model)[1]

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        """What the file of a model says, and :meth:`weights`. Raises UserError."""
        with self.open(model) as file:
            return entries.read_with_weights(file)

    def open(self, model: str) -> BinaryIO:
        """The file of a model, open for reading, which counts as a use. Raises UserError.

        Where the use cannot be written down, as on a full disk, that is logged once.
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
        """Bytes of the file of a model. Raises UserError: there is no such model."""
        return self._known(model).bytes

    def list(self) -> builtins.list[Row]:
        """All models, by id."""
        self.refresh()
        return self._index.rows()

    def evict(self, model: str) -> None:
        """Deletes a model. Raises UserError: there is none, or it cannot be deleted."""
        self._known(model)
        try:
            with self._index.exclusively():
                self._remove([model])
                clusters.update(self._index, self._prepare)
        except OSError as error:
            reason = f"model {model} of {self.address} cannot be deleted: {error}"
            raise UserError(reason) from error

    def refresh(self) -> None:
        """Makes the index agree with the files.

        A damaged file is logged once and left out. What killed writers left more than an hour ago
        is deleted.
        """
        try:
            changed = self._changes.find(self._index.states())
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # not damaged, but locked or the like
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
                    clusters.update(self._index, self._prepare)
                    summary.update(self._index, self._storage)
            except sqlite3.OperationalError as error:  # as on a full disk; what is known is used
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
        self._known(model)  # so that the path leads nowhere else
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
        """Models that leave the zoo when this one comes. Raises UserError: it may not come."""
        rows = [row for row in self._index.rows() if row.id not in (new.id, replace)]
        retention.check_accuracy(new.meta, [row.meta for row in rows])
        leaving = [] if replace is None else [replace]
        if self.capacity_bytes is not None:
            leaving += retention.leaving(rows, new, self.capacity_bytes, time.time())
        if leaving:
            logger.info("zoo %s: %s leave for %s", self.address, ", ".join(leaving), new.id)
        return leaving

    def _prepare(self, models: Collection[str]) -> dict[str, Prepared]:
        """These models, prepared for matching; without those that are no longer there."""
        known = dict(self._prepared)  # other threads add to it
        missing = [model for model in models if model not in known]
        by_content: dict[bytes, Prepared] = {}
        for model, content in self._index.outlines(missing).items():
            if content not in by_content:
                by_content[content] = prepare(unpacked(content))
            known[model] = self._prepared[model] = by_content[content]
        return {model: known[model] for model in models if model in known}


def may_use(meta: Meta, user: str | None) -> bool:
    """Whether a user may use a model; None is the owner of the zoo, who may use all."""
    return user is None or not meta.access or user in meta.access


def _open_index(places: Sequence[Path]) -> Index:
    """The index at the first place that can be used."""
    *preferred, last = places
    for place in preferred:
        try:
            return Index(place)
        except UserError as error:
            logger.warning("%s; another one is used meanwhile: %s", error, last)
    return Index(last)


def _readable(name: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "model"
