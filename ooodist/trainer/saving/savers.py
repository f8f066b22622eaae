"""Saves checkpoints in both forms, in three steps.

::

    begin      all ranks, between two calls    copies what is to be written
    write      each rank, in any thread        writes its part; no exchange
    complete   all ranks, between two calls    gives it its name, deletes old ones
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import keras

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import keras_file, parallel_write
from ooodist.checkpoint.state import State
from ooodist.engines.base import Engine
from ooodist.step.rank_state import RankState
from ooodist.trainer.callbacks import BestWeights
from ooodist.trainer.saving.copying import Copying


@dataclass(frozen=True)
class Wanted:
    """A checkpoint to save.

    Attributes:
        state: rank 0's counts.
        best_weights: the weights at the best epoch; None if they are not kept.
        is_due: whether it is one of the newest, of which some are kept.
        is_best: whether it is the best so far.
    """

    state: State
    best_weights: BestWeights
    is_due: bool
    is_best: bool


@dataclass
class Saver(ABC):
    """Saves one checkpoint after the other.

    Attributes:
        folder: where they go.
        keep: as ``checkpoint.keep``.
        engine: the engine that connects the ranks.
        copying: copies them to a second place; None: nothing does, or another rank's.
    """

    folder: Path
    keep: int
    engine: Engine
    copying: Copying | None

    @abstractmethod
    def begin(self, model: keras.Model, wanted: Wanted, *, copies: bool) -> Path:
        """Begins a checkpoint; all ranks call it, and return its path.

        Args:
            model: compiled and built.
            wanted: what is to be saved.
            copies: whether the model is trained before all is written.

        Raises:
            UserError: on all ranks, if it cannot be begun.
        """

    @abstractmethod
    def write(self) -> None:
        """Writes what this rank has of it. Raises UserError."""

    @abstractmethod
    def complete(self, written: Callable[[], None]) -> None:
        """Completes it; all ranks call it.

        Args:
            written: raises what has failed on this rank.

        Raises:
            UserError: on all ranks, if something has failed on some.
        """

    def finish_copies(self, more: Sequence[Path]) -> None:
        """Copies more, and waits for the second place; all ranks call it.

        Raises UserError, on all of them.
        """
        self._copy(more)
        with self.engine.agreed():
            if self.copying is not None:
                self.copying.finish()

    def settle_copies(self, seconds: float) -> None:
        """Waits for the second place at most so long, after training has failed."""
        if self.copying is not None:
            self.copying.settle(seconds)

    def _copy(self, paths: Sequence[Path]) -> None:
        if self.copying is not None:
            self.copying.begin(paths)


@dataclass
class SaveWhole(Saver):
    """Saves Keras files, on rank 0.

    Attributes:
        rank_state: what the steps of each rank keep for themselves.
    """

    rank_state: RankState
    _content: keras_file.Content | None = field(default=None, init=False)
    _files: Sequence[Path] = field(default=(), init=False)

    def begin(self, model: keras.Model, wanted: Wanted, *, copies: bool) -> Path:
        name = folders.file_name(*wanted.state.place)
        self._files = [
            *([self.folder / name] if wanted.is_due else []),
            *([self.folder / folders.BEST_NAME] if wanted.is_best else []),
        ]
        by_rank = self.rank_state.gathered(self.engine)
        with self.engine.agreed():
            if self.engine.rank == 0:
                self._content = keras_file.Content(
                    model,
                    wanted.state,
                    wanted.best_weights,
                    by_rank,
                    copies=copies,
                    checks=model.ooodist.strategy.watch.on_nan != "ignore",
                )
        return self._files[0]

    def write(self) -> None:
        if self._content is not None:
            self._content.write(self._files[0])
            for copy in self._files[1:]:
                keras_file.copy(self._files[0], copy)

    def complete(self, written: Callable[[], None]) -> None:
        with self.engine.agreed():
            written()
            self._content = None  # the copies
            if self.engine.rank == 0:
                folders.prune(self.folder, self.keep)
        self._copy(self._files)


@dataclass
class SaveParts(Saver):
    """Saves checkpoints in parts, on all ranks; the folder is on a disk that all ranks see.

    Attributes:
        writers: returns which rank writes each variable; see :class:`parallel_write.Writing`.
    """

    writers: Callable[[], Mapping[int, int]]
    _writing: parallel_write.Writing | None = field(default=None, init=False)
    _first: Path = field(default=Path(), init=False)
    _best: Path = field(default=Path(), init=False)
    _is_best: bool = field(default=False, init=False)

    def begin(self, model: keras.Model, wanted: Wanted, *, copies: bool) -> Path:
        self._best = self.folder / folders.best_parts_name(wanted.state.epoch)
        first = self.folder / folders.parts_name(*wanted.state.place)
        self._first, self._is_best = first if wanted.is_due else self._best, wanted.is_best
        self._writing = parallel_write.Writing(
            self.engine,
            self._first,
            model,
            wanted.state,
            self.writers(),
            wanted.best_weights,
            copies=copies,
            checks=model.ooodist.strategy.watch.on_nan != "ignore",
        )
        return self._first

    def write(self) -> None:
        assert self._writing is not None
        self._writing.write_part()

    def complete(self, written: Callable[[], None]) -> None:
        assert self._writing is not None
        with self._writing.finishing():
            written()
        self._writing = None  # the copies
        with self.engine.agreed():
            if self.engine.rank == 0:
                if self._is_best and self._first != self._best:
                    folders.link(self._first, self._best)
                if self._is_best:
                    folders.prune_best(self.folder, self._best)
                folders.prune(self.folder, self.keep)
        self._copy([self._first, *([self._best] if self._is_best else [])])
