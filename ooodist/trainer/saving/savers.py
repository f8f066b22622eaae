"""Saves checkpoints in both forms, in three steps.

::

    begin      all ranks, between two calls    copies what is to be written
    write      each rank, in any thread        writes its part; no exchange
    complete   all ranks, between two calls    gives it its name, deletes old ones

Where each rank has the whole model and optimizer, it is a Keras file, which anything that knows
Keras can open, a bucket takes in one step, and ``best.keras`` can replace. If not, it is in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras

from ooodist.checkpoint import archive
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.parallel_write import Writing
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


class Saver:
    """Saves one checkpoint after the other.

    Args:
        folder: where they go; if they are in parts, on a disk that all ranks see.
        keep: as ``checkpoint.keep``.
        engine: the engine that connects the ranks.
        copying: copies them to a second place; None: nothing does, or another rank's.
        rank_state: what the steps of each rank keep for themselves.
        writers: returns which rank writes each variable, by the variable's id, into checkpoints in
            parts; None: rank 0 writes Keras files.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        engine: Engine,
        copying: Copying | None,
        rank_state: RankState,
        writers: Callable[[], Mapping[int, int]] | None,
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._engine = engine
        self._copying = copying
        self._rank_state = rank_state
        self._writers = writers
        self._content: ModelContent | None = None  # on rank 0, of a Keras file
        self._writing: Writing | None = None  # parts
        self._paths: list[Path] = []  # the checkpoint, and another that is to be the same
        self._is_best = False

    def begin(self, model: keras.Model, wanted: Wanted, *, copies: bool) -> Path:
        """Begins a checkpoint; all ranks call it, and return its path.

        Args:
            model: compiled and built.
            wanted: what is to be saved.
            copies: whether the model is trained before all is written.

        Raises:
            UserError: on all ranks, if it cannot be begun.
        """
        engine, in_parts = self._engine, self._writers is not None
        place, self._is_best = wanted.state.place, wanted.is_best
        newest = folders.parts_name(*place) if in_parts else folders.file_name(*place)
        best = folders.best_parts_name(wanted.state.epoch) if in_parts else folders.BEST_NAME
        names = [*([newest] if wanted.is_due else []), *([best] if wanted.is_best else [])]
        self._paths = [self._folder / name for name in names]
        by_rank = self._rank_state.own() if in_parts else self._rank_state.gathered(engine)
        with engine.agreed():
            if in_parts or engine.rank == 0:
                self._content = ModelContent(
                    model,
                    wanted.state,
                    wanted.best_weights,
                    by_rank,
                    writers=None if self._writers is None else self._writers(),
                    rank=engine.rank,
                    copies=copies,
                    checks=model.ooodist.strategy.watch.on_nan != "ignore",
                )
        if in_parts:
            assert self._content is not None
            self._writing, self._content = Writing(engine, self._paths[0], self._content), None
        return self._paths[0]

    def write(self) -> None:
        """Writes what this rank has of it. Raises UserError."""
        if self._writing is not None:
            self._writing.write_part()
        elif self._content is not None:
            archive.write(self._paths[0], self._content)
            self._duplicate_best()

    def complete(self, written: Callable[[], None]) -> None:
        """Completes it; all ranks call it.

        Args:
            written: raises what has failed on this rank.

        Raises:
            UserError: on all ranks, if something has failed on some.
        """
        engine = self._engine
        with engine.agreed() if self._writing is None else self._writing.finishing():
            written()
        with engine.agreed():
            if engine.rank == 0:
                if self._writing is not None:
                    self._duplicate_best()
                    if self._is_best:
                        folders.prune_best(self._folder, self._paths[-1])
                folders.prune(self._folder, self._keep)
        self._content = self._writing = None  # the copies
        if self._copying is not None:
            self._copying.begin(self._paths)

    def finish_copies(self, more: Sequence[Path]) -> None:
        """Copies more, and waits for the second place; all ranks call it.

        Raises UserError, on all of them.
        """
        if self._copying is not None:
            self._copying.begin(more)
        with self._engine.agreed():
            if self._copying is not None:
                self._copying.finish()

    def settle_copies(self, seconds: float) -> None:
        """Waits for the second place at most so long, after training has failed."""
        if self._copying is not None:
            self._copying.settle(seconds)

    def _duplicate_best(self) -> None:
        """Makes the best checkpoint of the one that is written, if it is both."""
        for path in self._paths[1:]:
            folders.duplicate(self._paths[0], path)
