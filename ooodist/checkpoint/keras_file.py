"""Writes and loads checkpoints of whole models: files that ``keras.models.load_model`` opens.

Besides what Keras saves (the model, its weights, the optimizer and its state), a file has a member
``ooodist.json``, a :class:`State`: what else an exact resume needs. A file gets its final name only
once it is complete, so a run that is killed while it saves leaves the previous one intact.

Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.checkpoint.archive import (
    BEST_WEIGHTS_MEMBER,
    RESIDUALS_MEMBER,
    STATE_MEMBER,
    as_saved,
)
from ooodist.checkpoint.state import State, Variable
from ooodist.compat.keras_optimizer import remember_what_saving_skips
from ooodist.compat.keras_saving import layout_of
from ooodist.errors import UserError
from ooodist.step.finite import check_weights
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import replacing

if TYPE_CHECKING:
    import keras


def kept(model: keras.Model) -> list[Any]:
    """Returns the variables that a checkpoint keeps: the weights, then the optimizer's."""
    return [*model.weights, *model.optimizer.variables]


def variables_of(model: keras.Model) -> tuple[Variable, ...]:
    """Describes the variables that a checkpoint keeps, without reading their values."""
    layout = layout_of(model)
    return tuple(
        Variable(each.path, tuple(each.shape), str(each.dtype), layout.places_of(each))
        for each in kept(model)
    )


def fingerprint(model: keras.Model) -> str:
    """Returns the SHA-256 of the values of all variables that a checkpoint keeps."""
    return hex_digest(each.numpy().tobytes() for each in kept(model))


def write(
    file: Path,
    model: keras.Model,
    state: State,
    best_weights: Sequence[Any] | None = None,
    residuals: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a checkpoint; a previous file of this name stays until the new one is complete.

    Args:
        file: ends with ``.keras``.
        model: compiled and built.
        state: the variables and the fingerprint in it are replaced by the model's.
        best_weights: the model's weights at its best epoch, if they are to be restored when the
            training ends.
        residuals: what gradients have lost on a wire of 16 bits, by weight (step/wire.py).

    Raises:
        UserError: the file cannot be written, or weights are not finite.
    """
    check_weights(model)
    remember_what_saving_skips()
    state = replace(state, variables=variables_of(model), fingerprint=fingerprint(model))
    with replacing(file, "checkpoint") as temporary:
        model.save(temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.writestr(STATE_MEMBER, json.dumps(yaml_dataclass.plain(state)))
            if best_weights is not None:
                archive.writestr(BEST_WEIGHTS_MEMBER, _saved(best_weights))
            if residuals:
                names = np.array(list(residuals))
                archive.writestr(RESIDUALS_MEMBER, _saved([names, *residuals.values()]))


def _saved(arrays: Sequence[Any]) -> bytes:
    content = io.BytesIO()
    np.savez(content, *arrays)
    return content.getvalue()


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
    """Returns the weights of the best epoch; None if the checkpoint has none."""
    with zipfile.ZipFile(file) as archive:
        if BEST_WEIGHTS_MEMBER not in archive.namelist():
            return None
        content = io.BytesIO(archive.read(BEST_WEIGHTS_MEMBER))
    with np.load(content, allow_pickle=False) as arrays:
        return [
            as_saved(arrays[name], str(variable.dtype))
            for name, variable in zip(arrays.files, model.weights, strict=True)
        ]


def read_residuals(file: Path) -> dict[str, np.ndarray]:
    """Returns what gradients have lost on a wire of 16 bits, by weight; empty if nothing."""
    with zipfile.ZipFile(file) as archive:
        if RESIDUALS_MEMBER not in archive.namelist():
            return {}
        content = io.BytesIO(archive.read(RESIDUALS_MEMBER))
    with np.load(content, allow_pickle=False) as arrays:
        names, *values = (arrays[member] for member in arrays.files)
    return {str(name): value for name, value in zip(names, values, strict=True)}
