"""``.keras`` files, read and written one variable at a time, without Keras.

A file is an uncompressed zip archive::

    config.json           how to make and compile the model
    metadata.json         the version of Keras
    model.weights.h5      the values: /layers/dense/vars/0, /optimizer/vars/3
    assets/               files of layers, if any
    ooodist.json          a State, if it is a checkpoint; it says which variable is where
    best_weights.npz      the weights at the best epoch, if they are kept
    ranks.npz             what the steps of each rank keep for themselves, by name and rank
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from ooodist.checkpoint.arrays import DAMAGED, Writer, as_bytes, dtype_of
from ooodist.checkpoint.content import ASSETS, BEST, EXTRAS, RANKS, Content
from ooodist.checkpoint.state import State
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.replacing import replacing

CONFIG_MEMBER = "config.json"
METADATA_MEMBER = "metadata.json"
WEIGHTS_MEMBER = "model.weights.h5"
STATE_MEMBER = "ooodist.json"
BEST_WEIGHTS_MEMBER = "best_weights.npz"
RANKS_MEMBER = "ranks.npz"
ASSETS_FOLDER = "assets/"
_PIECE = 1 << 22  # bytes that are written at a time
_DTYPE = "dtype"  # the attribute that marks bfloat16, which HDF5 stores as plain bytes


def write(file: Path, content: Content, *, best: bool = False) -> None:
    """Writes a Keras file; one of this name stays until the new one is complete.

    Args:
        file: ends with ``.keras``.
        content: what it gets; the fingerprint in its state is replaced.
        best: take the weights of the best epoch, if there are any. No run stood there, so the file
            is no checkpoint then.

    Raises:
        UserError: it cannot be written, or the content cannot be read.
    """
    best = best and content.num_best > 0
    with replacing(file, "checkpoint") as temporary:
        weights, best_weights = temporary.with_suffix(".h5"), temporary.with_suffix(".npz")
        try:
            state = replace(content.state, fingerprint=_write_weights(weights, content, best=best))
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as target:
                target.writestr(METADATA_MEMBER, content.metadata)
                target.writestr(CONFIG_MEMBER, content.config)
                target.write(weights, WEIGHTS_MEMBER)
                for name in content.assets:
                    target.writestr(name, content.value(ASSETS, name).tobytes())
                if best:
                    return
                target.writestr(STATE_MEMBER, json.dumps(yaml_dataclass.plain(state)))
                if content.num_best:
                    with Writer(best_weights) as writer:
                        for index in range(content.num_best):
                            writer.write(_best_member(index), content.read_best(index))
                    target.write(best_weights, BEST_WEIGHTS_MEMBER)
                if by_rank := content.by_rank():
                    arrays = io.BytesIO()
                    np.savez(arrays, np.array(list(by_rank)), *by_rank.values())
                    target.writestr(RANKS_MEMBER, arrays.getvalue())
        finally:
            weights.unlink(missing_ok=True)
            best_weights.unlink(missing_ok=True)


def _write_weights(file: Path, content: Content, *, best: bool) -> str:
    """Writes the weights file and returns the fingerprint of the variables."""
    whole = hashlib.sha256()
    with weights_file(file, content.groups) as weights:
        for index, variable in enumerate(content.state.variables):
            is_best = best and index < content.num_best
            value = content.read_best(index) if is_best else content.read(index)
            whole.update(as_bytes(value))
            write_places(weights, variable.places, value)
        for place in content.extras:
            write_places(weights, [place], content.value(EXTRAS, place))
    return whole.hexdigest()


def read_state(file: Path) -> State:
    """Reads the state in a checkpoint, after checking every byte of the file.

    Raises UserError if there is no such file, it is damaged, or it is no checkpoint of ooodist.
    """
    if not file.is_file():
        raise UserError(f"there is no checkpoint {file}; check the path")
    with _reading(file), zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise UserError(f"checkpoint {file} is damaged: its part {damaged} is not whole")
        return _state_in(archive, file)


def _state_in(archive: zipfile.ZipFile, file: Path) -> State:
    if STATE_MEMBER not in archive.namelist():
        raise UserError(
            f"{file} is not a checkpoint of ooodist (it has no {STATE_MEMBER}); "
            "to start from the weights of any Keras file, give it as model.weights"
        )
    content = json.loads(archive.read(STATE_MEMBER))
    try:
        return yaml_dataclass.read(State, content)
    except UserError as error:
        raise UserError(f"checkpoint {file} was written by another ooodist: {error}") from error


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raises UserError for what is found to be damaged in this block."""
    try:
        yield
    except DAMAGED as error:
        raise UserError(
            f"checkpoint {file} is damaged ({error}); name an earlier one, "
            "or give the folder's name to find the newest that is whole"
        ) from error


class KerasFile(Content):
    """A checkpoint that is a Keras file. Raises UserError if it is damaged or no checkpoint."""

    ranks: dict[str, str]  # with the names of members of an archive

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        with _reading(file), ExitStack() as opened:
            self._archive = opened.enter_context(zipfile.ZipFile(file))
            self.state = _state_in(self._archive, file)
            self.config = self._archive.read(CONFIG_MEMBER).decode()
            self.metadata = self._archive.read(METADATA_MEMBER).decode()
            names = self._archive.namelist()
            self.assets = [n for n in names if n.startswith(ASSETS_FOLDER) and not n.endswith("/")]
            weights = opened.enter_context(self._member(WEIGHTS_MEMBER))
            self._weights = opened.enter_context(h5py.File(weights))
            self.groups, places = _layout(self._weights)
            known = {place for variable in self.state.variables for place in variable.places}
            self.extras = [place for place in places if place not in known]
            self.num_best, self.ranks = 0, {}
            if BEST_WEIGHTS_MEMBER in names:
                best = opened.enter_context(self._member(BEST_WEIGHTS_MEMBER))
                self._best = opened.enter_context(np.load(best, allow_pickle=False))
                self.num_best = len(self._best.files)
            if RANKS_MEMBER in names:
                ranks = opened.enter_context(self._member(RANKS_MEMBER))
                self._ranks = opened.enter_context(np.load(ranks, allow_pickle=False))
                keys, *arrays = self._ranks.files
                self.ranks = dict(zip(map(str, self._ranks[keys]), arrays, strict=True))
            self.enter_context(opened.pop_all())

    def value(self, kind: str, key: Any) -> np.ndarray:
        with _reading(self._file):
            if kind == ASSETS:
                return np.frombuffer(self._archive.read(key), np.uint8)
            if kind == EXTRAS:
                return values_of(self._weights[key])
            if kind == RANKS:
                return np.asarray(self._ranks[self.ranks[key]])
            variable = self.state.variables[key]
            if kind == BEST:
                array = np.asarray(self._best[_best_member(key)])
                # NumPy stores dtypes that it does not know, such as bfloat16, as plain bytes.
                return array.view(dtype_of(variable.dtype)) if array.dtype.kind == "V" else array
            if not variable.places:
                raise UserError(
                    f"checkpoint {self._file} does not say where {variable.path} is: an earlier "
                    "ooodist wrote it, or its layer does not save it; resume it in a job without "
                    "parallel, which writes it anew"
                )
            return values_of(self._weights[variable.places[0]])

    def _member(self, name: str) -> _Window:
        """Opens a member so that reading any place of it is quick, as it is not compressed."""
        info = self._archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed, which Keras does not do")
        return _Window(self._file, info)


def _layout(weights: h5py.File) -> tuple[dict[str, str], list[str]]:
    """The groups of a weights file, with their layers' names, and all places."""
    groups: dict[str, str] = {}
    places: list[str] = []

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset):
            places.append(path)
        elif path.split("/")[-1] == "vars":
            groups[path] = str(node.attrs.get("name", ""))

    weights.visititems(visit)
    return groups, places


class _Window(io.FileIO):
    """A member of a zip archive as a file; zipfile's own goes back only by starting anew."""

    def __init__(self, file: Path, info: zipfile.ZipInfo) -> None:
        super().__init__(file)
        super().seek(info.header_offset)
        header = super().read(30)
        lengths = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        self._start = info.header_offset + 30 + sum(lengths)  # behind its name and extra fields
        self._end = self._start + info.file_size
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: self._start, io.SEEK_CUR: super().tell(), io.SEEK_END: self._end}
        return super().seek(base[whence] + offset) - self._start

    def tell(self) -> int:
        return super().tell() - self._start

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return super().readinto(memoryview(buffer)[: self._left()])

    def read(self, size: int | None = -1) -> bytes:
        left = self._left()
        return super().read(left if size is None or size < 0 else min(size, left))

    def _left(self) -> int:
        return max(0, self._end - super().tell())


@contextmanager
def weights_file(file: Path, groups: Mapping[str, str]) -> Iterator[h5py.File]:
    """Yields a new weights file with these groups, each with the name of its layer or ""."""
    with h5py.File(file, "w") as weights:
        for path, name in groups.items():
            group = weights.create_group(path)
            if name:
                group.attrs["name"] = name
        yield weights


def write_places(weights: h5py.File, places: Iterable[str], array: np.ndarray) -> None:
    """Writes an array to its places in a weights file."""
    for place in places:
        dataset = _create(weights, place, array)
        if array.dtype == ml_dtypes.bfloat16:
            dataset.attrs[_DTYPE] = "bfloat16"


def _create(weights: h5py.File, place: str, array: np.ndarray) -> h5py.Dataset:
    """Writes a large array in pieces: h5py lets no other Python thread run while it writes one."""
    pieces = -(-array.nbytes // _PIECE) if array.ndim and array.dtype.isbuiltin == 1 else 1
    if pieces <= 1:
        return weights.create_dataset(place, data=array)
    dataset = weights.create_dataset(place, array.shape, array.dtype)
    rows = -(-len(array) // pieces)
    for start in range(0, len(array), rows):
        dataset[start : start + rows] = array[start : start + rows]
    return dataset


def number_type(dataset: h5py.Dataset) -> np.dtype | None:
    """The dtype of a data set's values, bfloat16 too; None if they are no numbers."""
    if dataset.dtype.kind in "fiub":
        return np.dtype(dataset.dtype)
    if dataset.dtype == np.dtype("V2") and dataset.attrs.get(_DTYPE) == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    return None


def values_of(dataset: h5py.Dataset) -> np.ndarray:
    """The values of a data set, including bfloat16, which HDF5 itself lacks."""
    values = np.asarray(dataset[()])
    return values.view(number_type(dataset) or values.dtype)


def _best_member(index: int) -> str:
    """The name of a weight in the archive of the best weights, without its suffix."""
    return f"arr_{index}"
