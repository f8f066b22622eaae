"""Writes and loads checkpoints of whole models: files that ``keras.models.load_model`` opens.

Besides what Keras saves (the model, its weights, the optimizer and its state), a file has a member
``ooodist.json``, a :class:`State`: what else an exact resume needs. A file gets its final name only
once it is complete, so a run that is killed while it saves leaves the previous one intact.

Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.checkpoint import archive
from ooodist.checkpoint.archive import BEST_WEIGHTS_MEMBER, RANKS_MEMBER, as_saved
from ooodist.checkpoint.arrays import as_bytes
from ooodist.checkpoint.state import State, Variable
from ooodist.compat.keras_saving import Layout, configuration, layout_of
from ooodist.errors import UserError
from ooodist.step.finiteness.finite import check_weight
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import replacing

if TYPE_CHECKING:
    import keras


def kept(model: keras.Model) -> list[Any]:
    """The variables that a checkpoint keeps: the weights, then the optimizer's."""
    return [*model.weights, *model.optimizer.variables]


def variables_of(model: keras.Model, layout: Layout | None = None) -> tuple[Variable, ...]:
    """Describes the variables that a checkpoint keeps, without reading their values."""
    layout = layout_of(model) if layout is None else layout
    return tuple(
        Variable(each.path, tuple(each.shape), str(each.dtype), layout.places_of(each))
        for each in kept(model)
    )


def fingerprint(model: keras.Model) -> str:
    """The SHA-256 of the values of all variables that a checkpoint keeps."""
    return hex_digest(each.numpy().tobytes() for each in kept(model))


def write(
    file: Path,
    model: keras.Model,
    state: State,
    best_weights: Sequence[Any] | None = None,
    by_rank: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a checkpoint of a model as it is now; see :class:`Content`. Raises UserError."""
    Content(model, state, best_weights, by_rank).write(file)


class Content:
    """What a checkpoint is to have.

    Args:
        model: compiled and built.
        state: the variables and the fingerprint in it are replaced by the model's.
        best_weights: the model's weights at its best epoch, if they are to be restored when the
            training ends.
        by_rank: what the steps of each rank keep for themselves, by name and then by rank
            (step/sending/wire.py).
        copies: take copies of all values now, so that the model may be trained before and while
            they are written, by any thread. If false, one value at a time is in memory.
        checks: refuse weights that are not finite.
    """

    def __init__(
        self,
        model: keras.Model,
        state: State,
        best_weights: Sequence[Any] | None = None,
        by_rank: Mapping[str, np.ndarray] | None = None,
        *,
        copies: bool = False,
        checks: bool = True,
    ) -> None:
        self._checks = checks
        self._model = model
        self._layout = layout_of(model)
        self._config, self._metadata = configuration(model)
        self._state = replace(state, variables=variables_of(model, self._layout))
        self._best_weights = best_weights
        self._by_rank = by_rank
        self._values = [_value(each) for each in kept(model)] if copies else kept(model)

    def write(self, file: Path) -> None:
        """Writes the file; a previous one of this name stays until the new one is complete.

        Args:
            file: ends with ``.keras``.

        Raises:
            UserError: it cannot be written, or weights are not finite.
        """
        with replacing(file, "checkpoint") as temporary:
            weights = temporary.with_suffix(".h5")
            try:
                state = replace(self._state, fingerprint=self._write_weights(weights))
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as target:
                    target.writestr(archive.METADATA_MEMBER, self._metadata)
                    target.writestr(archive.CONFIG_MEMBER, self._config)
                    target.write(weights, archive.WEIGHTS_MEMBER)
                    for name, content in self._layout.assets.items():
                        target.writestr(name, content)
                    target.writestr(archive.STATE_MEMBER, json.dumps(yaml_dataclass.plain(state)))
                    if self._best_weights is not None:
                        best = archive.saved(self._best_weights)
                        target.writestr(archive.BEST_WEIGHTS_MEMBER, best)
                    if self._by_rank:
                        by_rank = archive.saved_by_rank(self._by_rank)
                        target.writestr(archive.RANKS_MEMBER, by_rank)
            finally:
                weights.unlink(missing_ok=True)

    def _write_weights(self, file: Path) -> str:
        """Writes the weights file and returns the fingerprint of the variables."""
        whole = hashlib.sha256()
        described = zip(kept(self._model), self._values, self._state.variables, strict=True)
        with archive.weights_file(file, self._layout.groups) as weights:
            for index, (variable, value, description) in enumerate(described):
                array = _value(value)
                if self._checks and index < len(self._model.weights):
                    check_weight(self._model, variable, array)
                whole.update(as_bytes(array))
                archive.write_places(weights, description.places, array)
            for place, value in self._layout.values.items():
                if isinstance(value, np.ndarray):  # no variable
                    archive.write_places(weights, [place], value)
        return whole.hexdigest()


def _value(variable: Any) -> np.ndarray:
    """The value of a variable, or an array as it is."""
    return np.asarray(variable if isinstance(variable, np.ndarray) else variable.numpy())


def copy(source: Path, file: Path) -> None:
    """Copies a checkpoint as safely as :func:`write`. Raises UserError if it cannot be written."""
    with replacing(file, "checkpoint") as temporary:
        shutil.copyfile(source, temporary)


def load_variables(file: Path, model: keras.Model, state: State) -> None:
    """Sets the weights and the optimizer state, bit for bit, to those in the file.

    ``model`` is compiled and built, its optimizer too, and ``check_fits`` has passed.
    Raises UserError if the values read back are not those that were written.
    """
    model.load_weights(file)
    if fingerprint(model) != state.fingerprint:
        raise UserError(
            f"checkpoint {file} does not give back the values that were saved: "
            "this model or optimizer loads its variables in a way of its own"
        )


def read_best_weights(file: Path, model: keras.Model) -> list[np.ndarray] | None:
    """The weights of the best epoch; None if the checkpoint has none."""
    with zipfile.ZipFile(file) as saved:
        if BEST_WEIGHTS_MEMBER not in saved.namelist():
            return None
        content = io.BytesIO(saved.read(BEST_WEIGHTS_MEMBER))
    with np.load(content, allow_pickle=False) as arrays:
        return [
            as_saved(arrays[name], str(variable.dtype))
            for name, variable in zip(arrays.files, model.weights, strict=True)
        ]


def read_rank_state(file: Path) -> dict[str, np.ndarray]:
    """What gradients have lost on a wire of 16 bits, by weight and then by rank.

    It is empty if they have lost nothing.
    """
    with zipfile.ZipFile(file) as saved:
        if RANKS_MEMBER not in saved.namelist():
            return {}
        content = io.BytesIO(saved.read(RANKS_MEMBER))
    with np.load(content, allow_pickle=False) as arrays:
        names, *values = (arrays[member] for member in arrays.files)
    return {str(name): value for name, value in zip(names, values, strict=True)}
