"""Writes a checkpoint in parts: all ranks at the same time, each the variables that it has."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.checkpoint import parts
from ooodist.checkpoint.arrays import Entry
from ooodist.checkpoint.content import Content
from ooodist.checkpoint.folder import making
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.state import State
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass

if TYPE_CHECKING:
    import keras

_NOT_SEEN = (
    "a pipeline's output must be on a disk that all ranks see, and so must one with "
    "shard_optimizer: give one, as --output DIR"
)


def spread(held: Sequence[tuple[Any, Sequence[int]]]) -> dict[int, int]:
    """Spreads variables over the ranks that have them, by their sizes.

    Args:
        held: variables, each with the ranks that can write it. Those that a single rank has (state
            of a sharded optimizer) are counted first, and the others even out what is left.

    Returns:
        the rank that writes each variable into checkpoints, by the variable's id.
    """
    load: dict[int, int] = {}  # numbers of elements, by rank
    writers = {}
    for variable, ranks in sorted(held, key=lambda one: len(one[1]) > 1):
        writer = min(ranks, key=lambda rank: load.get(rank, 0))
        load[writer] = load.get(writer, 0) + math.prod(variable.shape)
        writers[id(variable)] = writer
    return writers


def write(
    engine: Engine,
    folder: Path,
    model: keras.Model,
    state: State,
    writers: Mapping[int, int],
    best_weights: Sequence[np.ndarray | None] | None = None,
    *,
    checks: bool = True,
) -> None:
    """Writes a checkpoint of a model as it is now; all ranks call it. See :class:`Writing`."""
    with engine.agreed():
        content = ModelContent(
            model, state, best_weights, writers=writers, rank=engine.rank, checks=checks
        )
    writing = Writing(engine, folder, content)
    with writing.finishing():
        writing.write_part()


class Writing:
    """A checkpoint that is being written; one of this name stays until the new one is complete.

    All ranks make it, and finish it; in between each writes its part, in any thread.

    Args:
        engine: the engine that connects the ranks.
        folder: the checkpoint; on a disk that all ranks see.
        content: what this rank writes; rank 0's says what the checkpoint has in all.

    Raises:
        UserError: on all ranks, if the folder cannot be made, or one does not see it.
    """

    def __init__(self, engine: Engine, folder: Path, content: Content) -> None:
        self._engine = engine
        self._folder = folder
        self._content = content
        self._written: list[parts.Written] = []
        with contextlib.ExitStack() as made:  # on rank 0
            with engine.agreed():
                path = made.enter_context(making(folder)) if engine.rank == 0 else folder
            self._temporary = Path(engine.broadcast_text(str(path)))
            with engine.agreed():
                if not self._temporary.is_dir():
                    raise UserError(
                        f"rank {engine.rank} does not see the folder {folder.parent}, which rank "
                        f"0 sees; {_NOT_SEEN}"
                    )
            self._made = made.pop_all()

    def write_part(self) -> None:
        """Writes what this rank has. Raises UserError if it cannot, or a weight is not finite."""
        with _explained(self._folder):
            self._written = parts.write_part(self._temporary, self._engine.rank, self._content)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Completes the checkpoint after this block, in which this rank's part is written, or what
        has failed is raised; all ranks enter it.

        Raises:
            UserError: on all ranks, if it has failed on some, or the rest cannot be written.
        """
        engine = self._engine
        with self._made:
            with engine.agreed():
                yield
            plain = json.dumps(yaml_dataclass.plain(self._written))
            texts = [engine.broadcast_text(plain, root) for root in range(engine.size)]
            with engine.agreed(), _explained(self._folder):
                if engine.rank == 0:
                    self._complete(texts)
                    self._made.close()  # it gets its name

    def _complete(self, texts: Sequence[str]) -> None:
        """Completes the checkpoint by what all ranks say that they have written, after a look."""
        written: list[parts.Written] = []
        for rank, text in enumerate(texts):
            own = json.loads(text)
            part = self._temporary / parts.part_name(rank)
            if own and not part.is_file():
                raise UserError(
                    f"rank 0 does not see {part}, which rank {rank} has written; {_NOT_SEEN}"
                )
            written += [(kind, key, yaml_dataclass.read(Entry, entry)) for kind, key, entry in own]
        parts.complete(self._temporary, self._content, written)


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raises UserError for what cannot be written in this block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"checkpoint {folder} cannot be written: {error}") from error
