"""Writes and reads checkpoints: ``.keras`` files that ``keras.models.load_model`` opens.

Besides what Keras saves (the model, its weights, the optimizer and its state), a file has a member
``ooodist.json``, a :class:`State`: what else an exact resume needs. A file gets its final name only
once it is complete, so a run that is killed while it saves leaves the previous one intact::

    runs/digits/checkpoint-epoch-000007.keras    after 7 epochs
    runs/digits/best.keras                       of the best epoch so far

Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.compat.keras_optimizer import remember_what_saving_skips
from ooodist.errors import UserError
from ooodist.step.finite import check_weights
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import INCOMPLETE_PREFIX, replacing

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("ooodist")

BEST_NAME = "best.keras"
STATE_MEMBER = "ooodist.json"
BEST_WEIGHTS_MEMBER = "best_weights.npz"
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError)
_NAME = re.compile(r"checkpoint-epoch-(\d+)\.keras")


@dataclass(frozen=True)
class Variable:
    """The path, shape and dtype of a saved variable."""

    path: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class State:
    """The position of a run when a checkpoint was written, and what describes the run."""

    epoch: int  # number of complete epochs
    step: int  # batches of the sample stream that each worker has used
    seed: int
    size: int  # number of workers
    batch: int  # samples per worker and step
    config: dict[str, Any]  # the job, as in its YAML file
    variables: tuple[Variable, ...]  # the model's weights, then the optimizer's
    fingerprint: str  # SHA-256 of all their values
    history: list[dict[str, Any]] = field(default_factory=list)  # the logs of each epoch
    best: dict[str, Any] | None = None  # the state of callbacks.Best
    selection: dict[str, Any] | None = None  # see Strategy.selection
    warm_start: dict[str, Any] | None = None  # a transfer.provenance.WarmStart
    versions: dict[str, str] = field(default_factory=dict)


def file_name(epoch: int) -> str:
    """Returns the name of the checkpoint after ``epoch`` epochs."""
    return f"checkpoint-epoch-{epoch:06}.keras"


def epochs(folder: Path) -> list[int]:
    """Returns the epochs of the checkpoints in ``folder``, whole or damaged, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for file in folder.iterdir() if (match := _NAME.match(file.name)))


def describe(model: keras.Model) -> tuple[tuple[Variable, ...], str]:
    """Returns the variables that a checkpoint keeps, and a fingerprint of their values."""
    kept = _kept(model)
    variables = [Variable(each.path, tuple(each.shape), str(each.dtype)) for each in kept]
    return tuple(variables), hex_digest(each.numpy().tobytes() for each in kept)


def write(
    file: Path, model: keras.Model, state: State, best_weights: Sequence[np.ndarray] | None = None
) -> None:
    """Writes a checkpoint; a previous file of this name stays until the new one is complete.

    ``best_weights`` are the model's weights at its best epoch, if they are to be restored when the
    training ends. Raises UserError if the file cannot be written or weights are not finite.
    """
    check_weights(model)
    remember_what_saving_skips()
    with replacing(file, "checkpoint") as temporary:
        model.save(temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.writestr(STATE_MEMBER, json.dumps(yaml_dataclass.plain(state)))
            if best_weights is not None:
                arrays = io.BytesIO()
                np.savez(arrays, *best_weights)
                archive.writestr(BEST_WEIGHTS_MEMBER, arrays.getvalue())


def copy(source: Path, file: Path) -> None:
    """Copies a checkpoint as safely as :func:`write`. Raises UserError if it cannot be written."""
    with replacing(file, "checkpoint") as temporary:
        shutil.copyfile(source, temporary)


def prune(folder: Path, keep: int) -> None:
    """Deletes all checkpoints but the ``keep`` newest, and incomplete files of killed runs."""
    for epoch in epochs(folder)[:-keep]:
        (folder / file_name(epoch)).unlink(missing_ok=True)
    for file in folder.glob(f"{INCOMPLETE_PREFIX}*"):
        file.unlink(missing_ok=True)


def read_state(file: Path) -> State:
    """Reads the state in a checkpoint, after checking every byte of the file.

    Raises UserError if there is no such file, it is damaged, or it is no checkpoint of ooodist.
    """
    if not file.is_file():
        raise UserError(f"there is no checkpoint {file}; check the path")
    try:
        with zipfile.ZipFile(file) as archive:
            if damaged := archive.testzip():
                raise UserError(f"checkpoint {file} is damaged: its part {damaged} is not whole")
            if STATE_MEMBER not in archive.namelist():
                raise UserError(
                    f"{file} is not a checkpoint of ooodist (it has no {STATE_MEMBER}); "
                    "to start from the weights of any Keras file, give it as model.weights"
                )
            content = json.loads(archive.read(STATE_MEMBER))
    except _DAMAGED as error:
        raise UserError(
            f"checkpoint {file} is damaged ({error}); name an earlier one, "
            "or give the folder's name to find the newest that is whole"
        ) from error
    try:
        return yaml_dataclass.read(State, content)
    except UserError as error:
        raise UserError(f"checkpoint {file} was written by another ooodist: {error}") from error


def latest(folder: Path) -> tuple[Path, State]:
    """Returns the newest undamaged checkpoint of a folder; logs the damaged ones.

    Raises UserError if there is none.
    """
    for epoch in reversed(epochs(folder)):
        file = folder / file_name(epoch)
        try:
            return file, read_state(file)
        except UserError as error:
            logger.warning("%s: looking for an earlier one", error)
    damaged = " that is whole" if epochs(folder) else ""
    raise UserError(
        f"checkpoint.resume: there is no checkpoint{damaged} in {folder}; "
        "give the path of one, or start anew without resume"
    )


def check_fits(model: keras.Model, state: State, file: str) -> None:
    """Raises UserError if the checkpoint's variables are not those of the model."""
    variables, _ = describe(model)
    for mine, saved in zip(variables, state.variables, strict=False):
        if (mine.shape, mine.dtype) != (saved.shape, saved.dtype):
            raise UserError(
                f"checkpoint {file} is of another model or optimizer: it has {_shown(saved)} "
                f"where this job has {_shown(mine)}; {_WAY_OUT}"
            )
    if len(variables) != len(state.variables):
        longer = max(variables, state.variables, key=len)
        where = "this job" if longer is variables else "the checkpoint"
        first = longer[min(len(variables), len(state.variables))]
        raise UserError(
            f"checkpoint {file} is of another model or optimizer: "
            f"only {where} has {_shown(first)}; {_WAY_OUT}"
        )


_WAY_OUT = "give model and optimizer as in the config.yaml beside it, or start anew without resume"


def load_variables(file: Path, model: keras.Model, state: State) -> None:
    """Sets the weights and the optimizer state, bit for bit, to those in the file.

    ``model`` is compiled and built, its optimizer too, and :func:`check_fits` has passed.
    Raises UserError if the values read back are not those that were written.
    """
    model.load_weights(file)
    if describe(model)[1] != state.fingerprint:
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
            # NumPy stores dtypes that it does not know, such as bfloat16, as plain bytes.
            arrays[name].view(variable.numpy().dtype)
            for name, variable in zip(arrays.files, model.weights, strict=True)
        ]


def _kept(model: keras.Model) -> list[Any]:
    return [*model.weights, *model.optimizer.variables]


def _shown(variable: Variable) -> str:
    return f"{variable.path} of shape {variable.shape}, {variable.dtype}"
