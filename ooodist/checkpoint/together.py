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
from ooodist.checkpoint.keras_file import kept
from ooodist.checkpoint.parts import Manifest, part_name, write_manifest
from ooodist.checkpoint.state import State, Variable
from ooodist.compat.keras_saving import Layout, configuration, layout_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step.finite import check_weight
from ooodist.util import yaml_dataclass

if TYPE_CHECKING:
    import keras

_VARIABLES, _BEST, _EXTRAS, _ASSETS = "variables", "best", "extras", "assets"


@dataclass(frozen=True)
class _Array:
    """An array that a checkpoint gets, and who writes it."""

    kind: str  # _VARIABLES, …
    key: str  # in the manifest; of variables, their index
    name: str  # in a part
    writer: int
    source: Any  # a variable or an array; None for what another rank has


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
) -> None:
    """Writes a checkpoint; one of this name stays until the new one is complete.

    All ranks call it. A part takes the memory of one variable.

    Args:
        engine: the engine that connects the ranks.
        folder: the checkpoint; on a disk that all ranks see.
        model: compiled and built. Only the values of variables that this rank writes are read.
        state: rank 0's counts; the variables in it are replaced by the model's.
        writers: the rank that writes each variable, by the variable's id. Rank 0 writes the others.
        best_weights: the weights at the best epoch, if they are to be restored when the training
            ends; None for those that this rank does not write.

    Raises:
        UserError: on all ranks, if something cannot be written on some, or a weight is not finite.
    """
    temporary = Path(engine.broadcast_text(str(folders.incomplete(folder))))
    with engine.agreed(), _explained(folder):
        if engine.rank == 0:
            temporary.mkdir()
    try:
        layout = None
        written: list[tuple[str, str, Entry]] = []
        with engine.agreed(), _explained(folder):
            if not temporary.is_dir():
                raise UserError(
                    f"rank {engine.rank} does not see the folder {temporary.parent}, which rank 0 "
                    "sees; a pipeline's output must be on a disk that all ranks see: give one, as "
                    "--output DIR"
                )
            layout = layout_of(model) if engine.rank == 0 else None
            arrays = _arrays(model, layout, writers, best_weights)
            own = [array for array in arrays if array.writer == engine.rank]
            if own:
                with Writer(temporary / part_name(engine.rank)) as part:
                    for array in own:
                        entry = part.write(array.name, _value_of(array, model))
                        written.append((array.kind, array.key, entry))
        plain = json.dumps(yaml_dataclass.plain(written))
        texts = [engine.broadcast_text(plain, root) for root in range(engine.size)]
        with engine.agreed(), _explained(folder):
            if layout is not None:
                manifest = _manifest(temporary, model, state, layout, texts)
                write_manifest(temporary, manifest)
                folders.put_in_place(temporary, folder)
    finally:
        if engine.rank == 0:
            folders.delete(temporary)


def _arrays(
    model: keras.Model,
    layout: Layout | None,
    writers: Mapping[int, int],
    best_weights: Sequence[np.ndarray | None] | None,
) -> list[_Array]:
    """Returns what goes into the checkpoint, the same on all ranks but for what rank 0 writes."""
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


def _value_of(array: _Array, model: keras.Model) -> np.ndarray:
    """Returns an array's value. Raises UserError if it is of a weight and not finite."""
    if array.kind != _VARIABLES:
        return np.asarray(array.source)
    value = np.asarray(array.source.numpy())
    if int(array.key) < len(model.weights):
        check_weight(model, array.source, value)
    return value


def _manifest(
    temporary: Path, model: keras.Model, state: State, layout: Layout, texts: Sequence[str]
) -> Manifest:
    """Returns the manifest of what all ranks say that they have written; rank 0 looks whether."""
    found: dict[str, dict[str, Entry]] = {_VARIABLES: {}, _BEST: {}, _EXTRAS: {}, _ASSETS: {}}
    sizes = {}
    for rank, text in enumerate(texts):
        for kind, key, entry in json.loads(text):
            found[kind][key] = yaml_dataclass.read(Entry, entry)
        if text != "[]":
            part = temporary / part_name(rank)
            if not part.is_file():
                raise UserError(
                    f"rank 0 does not see {part}, which rank {rank} has written; a pipeline's "
                    "output must be on a disk that all ranks see: give one, as --output DIR"
                )
            sizes[part.name] = part.stat().st_size
    config, metadata = configuration(model)
    variables = tuple(
        Variable(each.path, tuple(each.shape), str(each.dtype), layout.places_of(each))
        for each in kept(model)
    )
    return Manifest(
        state=replace(state, variables=variables, fingerprint=""),
        config=config,
        metadata=metadata,
        sizes=sizes,
        variables=tuple(found[_VARIABLES][str(index)] for index in range(len(variables))),
        best=tuple(found[_BEST][str(index)] for index in range(len(found[_BEST]))),
        groups=layout.groups,
        extras=found[_EXTRAS],
        assets=found[_ASSETS],
    )


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raises UserError for what cannot be written in this block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"checkpoint {folder} cannot be written: {error}") from error
