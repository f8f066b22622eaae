"""Writes a checkpoint in parts: all ranks at the same time, each the variables that it has."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.arrays import Entry, Writer
from ooodist.checkpoint.keras_file import kept, variables_of
from ooodist.checkpoint.parts import Manifest, part_name, write_manifest
from ooodist.checkpoint.state import State
from ooodist.compat.keras_saving import Layout, configuration, layout_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step.finiteness.finite import check_weight
from ooodist.util import yaml_dataclass

if TYPE_CHECKING:
    import keras

_VARIABLES, _BEST, _EXTRAS, _ASSETS = "variables", "best", "extras", "assets"
_OF_RANK = "rank"  # what each rank writes under the same keys


@dataclass(frozen=True)
class _Array:
    """An array that a checkpoint gets, and who writes it."""

    kind: str  # _VARIABLES, …
    key: str  # in the manifest; of variables, their index
    name: str  # in a part
    writer: int
    source: Any  # a variable or an array; None for what another rank has
    value: np.ndarray | None = None  # a copy of its value, if one was taken


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
    writing = Writing(engine, folder, model, state, writers, best_weights, checks=checks)
    with writing.finishing():
        writing.write_part()


class Writing:
    """A checkpoint that is being written; one of this name stays until the new one is complete.

    All ranks make it, and finish it; in between each writes its part, in any thread.

    Args:
        engine: the engine that connects the ranks.
        folder: the checkpoint; on a disk that all ranks see.
        model: compiled and built. Only the values of variables that this rank writes are read.
        state: rank 0's counts; the variables in it are replaced by the model's.
        writers: the rank that writes each variable, by the variable's id. Rank 0 writes the others.
        best_weights: the weights at the best epoch, if they are to be restored when the training
            ends; None for those that this rank does not write.
        rank_state: what the steps of this rank keep for themselves; the same keys on all ranks.
        copies: take copies of all values of this rank's part now, so that the model may be trained
            before and while they are written. If false, one value at a time is in memory.
        checks: refuse weights that are not finite.

    Raises:
        UserError: on all ranks, if the folder cannot be made, or one does not see it.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        model: keras.Model,
        state: State,
        writers: Mapping[int, int],
        best_weights: Sequence[np.ndarray | None] | None = None,
        *,
        rank_state: Mapping[str, np.ndarray] | None = None,
        copies: bool = False,
        checks: bool = True,
    ) -> None:
        self._checks = checks
        self._engine = engine
        self._folder = folder
        self._model = model
        self._state = state
        self._layout: Layout | None = None
        self._configuration = ("", "")
        self._own: list[_Array] = []
        self._written: list[tuple[str, str, Entry]] = []
        self._temporary = Path(engine.broadcast_text(str(folders.incomplete(folder))))
        with engine.agreed(), _explained(folder):
            if engine.rank == 0:
                self._temporary.mkdir()
        try:
            with engine.agreed(), _explained(folder):
                if not self._temporary.is_dir():
                    raise UserError(
                        f"rank {engine.rank} does not see the folder {folder.parent}, which rank "
                        "0 sees; a pipeline's output must be on a disk that all ranks see, and "
                        "so must one with shard_optimizer: give one, as --output DIR"
                    )
                if engine.rank == 0:
                    self._layout, self._configuration = layout_of(model), configuration(model)
                arrays = _arrays(model, self._layout, writers, best_weights)
                self._own = [array for array in arrays if array.writer == engine.rank]
                self._own += [
                    _Array(_OF_RANK, key, f"rank-{engine.rank}/{key}", engine.rank, value)
                    for key, value in (rank_state or {}).items()
                ]
                if copies:
                    self._own = [replace(array, value=_read(array)) for array in self._own]
        except UserError:
            self._discard()
            raise

    def write_part(self) -> None:
        """Writes what this rank has. Raises UserError if it cannot, or a weight is not finite."""
        if not self._own:
            return
        with (
            _explained(self._folder),
            Writer(self._temporary / part_name(self._engine.rank)) as part,
        ):
            for array in self._own:
                entry = part.write(array.name, _value_of(array, self._model, checks=self._checks))
                self._written.append((array.kind, array.key, entry))

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Completes the checkpoint after this block, in which this rank's part is written, or what
        has failed is raised; all ranks enter it.

        Raises:
            UserError: on all ranks, if it has failed on some, or the rest cannot be written.
        """
        engine, temporary = self._engine, self._temporary
        try:
            with engine.agreed():
                yield
            plain = json.dumps(yaml_dataclass.plain(self._written))
            texts = [engine.broadcast_text(plain, root) for root in range(engine.size)]
            with engine.agreed(), _explained(self._folder):
                if engine.rank == 0:
                    write_manifest(temporary, self._manifest(texts))
                    folders.put_in_place(temporary, self._folder)
        finally:
            self._discard()

    def _discard(self) -> None:
        """Deletes what is not complete."""
        if self._engine.rank == 0:
            folders.delete(self._temporary)

    def _manifest(self, texts: Sequence[str]) -> Manifest:
        """The manifest of what all ranks say that they have written, after a look."""
        found: dict[str, dict[str, Entry]] = {_VARIABLES: {}, _BEST: {}, _EXTRAS: {}, _ASSETS: {}}
        rank_state: dict[str, list[Entry]] = {}
        sizes = {}
        for rank, text in enumerate(texts):
            for kind, key, entry in json.loads(text):
                read = yaml_dataclass.read(Entry, entry)
                if kind == _OF_RANK:
                    rank_state.setdefault(key, []).append(read)
                else:
                    found[kind][key] = read
            if text != "[]":
                part = self._temporary / part_name(rank)
                if not part.is_file():
                    raise UserError(
                        f"rank 0 does not see {part}, which rank {rank} has written; a pipeline's "
                        "output must be on a disk that all ranks see, and so must one with "
                        "shard_optimizer: give one, as --output DIR"
                    )
                sizes[part.name] = part.stat().st_size
        assert self._layout is not None
        variables = variables_of(self._model, self._layout)
        config, metadata = self._configuration
        return Manifest(
            state=replace(self._state, variables=variables, fingerprint=""),
            config=config,
            metadata=metadata,
            sizes=sizes,
            variables=tuple(found[_VARIABLES][str(index)] for index in range(len(variables))),
            best=tuple(found[_BEST][str(index)] for index in range(len(found[_BEST]))),
            groups=self._layout.groups,
            extras=found[_EXTRAS],
            assets=found[_ASSETS],
            rank_state={key: tuple(by_rank) for key, by_rank in rank_state.items()},
        )


def _arrays(
    model: keras.Model,
    layout: Layout | None,
    writers: Mapping[int, int],
    best_weights: Sequence[np.ndarray | None] | None,
) -> list[_Array]:
    """What goes into the checkpoint, the same on all ranks but for what rank 0 writes."""
    variables = kept(model)
    found = []
    for index, variable in enumerate(variables):
        writer = writers.get(id(variable), 0)
        found.append(_Array(_VARIABLES, str(index), variable.path, writer, variable))
    for index, best in enumerate(best_weights or ()):
        weight = variables[index]  # the weights come first
        writer = writers.get(id(weight), 0)
        found.append(_Array(_BEST, str(index), f"best/{weight.path}", writer, best))
    if layout is not None:
        for place, value in layout.values.items():
            if isinstance(value, np.ndarray):  # no variable
                found.append(_Array(_EXTRAS, place, f"file/{place}", 0, value))
        for asset, content in layout.assets.items():
            value = np.frombuffer(content, np.uint8)
            found.append(_Array(_ASSETS, asset, f"file/{asset}", 0, value))
    return found


def _value_of(array: _Array, model: keras.Model, *, checks: bool) -> np.ndarray:
    """An array's value. Raises UserError if it is checked, of a weight, and not finite."""
    value = _read(array) if array.value is None else array.value
    if checks and array.kind == _VARIABLES and int(array.key) < len(model.weights):
        check_weight(model, array.source, value)
    return value


def _read(array: _Array) -> np.ndarray:
    """An array's value as it is now."""
    return np.asarray(array.source.numpy() if array.kind == _VARIABLES else array.source)


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raises UserError for what cannot be written in this block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"checkpoint {folder} cannot be written: {error}") from error
