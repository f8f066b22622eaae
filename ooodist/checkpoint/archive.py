"""``.keras`` files, read and written one variable at a time, without Keras.

A file is an uncompressed zip archive::

    config.json           how to make and compile the model
    metadata.json         the version of Keras
    model.weights.h5      the values: /layers/dense/vars/0, /optimizer/vars/3
    assets/               files of layers, if any
    ooodist.json          a State, if it is a checkpoint; it says which variable is where
    best_weights.npz      the weights at the best epoch, if they are kept
    residuals.npz         what gradients have lost on a wire of 16 bits, by weight and rank
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

from ooodist.checkpoint.arrays import DAMAGED, Closing, dtype_of
from ooodist.checkpoint.state import State
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass

CONFIG_MEMBER = "config.json"
METADATA_MEMBER = "metadata.json"
WEIGHTS_MEMBER = "model.weights.h5"
STATE_MEMBER = "ooodist.json"
BEST_WEIGHTS_MEMBER = "best_weights.npz"
RANKS_MEMBER = "ranks.npz"
ASSETS = "assets/"
_PIECE = 1 << 22  # bytes that are written at a time
_DTYPE = "dtype"  # the attribute that marks bfloat16, which HDF5 stores as plain bytes


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
            return _state_in(archive, file)
    except DAMAGED as error:
        raise _damaged(file, error) from error


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


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(
        f"checkpoint {file} is damaged ({error}); name an earlier one, "
        "or give the folder's name to find the newest that is whole"
    )


class KerasFile(Closing):
    """Reads a checkpoint that is a Keras file, one variable at a time.

    Raises:
        UserError: it is damaged, no checkpoint, or of an ooodist that did not say where variables
            are.

    Attributes:
        state: what it says of the run.
        num_best: how many weights of the best epoch it has: all or none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open = ExitStack()
        try:
            self._archive = self._open.enter_context(zipfile.ZipFile(file))
            self.state = _state_in(self._archive, file)
            self.num_best = 0
            self._weights = self._open.enter_context(h5py.File(self._member(WEIGHTS_MEMBER)))
            if BEST_WEIGHTS_MEMBER in self._archive.namelist():
                member = self._member(BEST_WEIGHTS_MEMBER)
                self._best = self._open.enter_context(np.load(member, allow_pickle=False))
                self.num_best = len(self._best.files)
        except DAMAGED as error:
            self.close()
            raise _damaged(file, error) from error
        except UserError:
            self.close()
            raise
        for variable in self.state.variables:
            if not variable.places:
                self.close()
                raise UserError(
                    f"checkpoint {file} does not say where {variable.path} is: an earlier ooodist "
                    "wrote it, or its layer does not save it; resume it in a job without parallel, "
                    "which writes it anew"
                )

    def close(self) -> None:
        self._open.close()

    def read(self, index: int) -> np.ndarray:
        """The value of a variable, by its index in the state."""
        return self.read_place(self.state.variables[index].places[0])

    def read_place(self, place: str) -> np.ndarray:
        """The array at a place of the weights file."""
        try:
            dataset = self._weights[place]
            array = np.asarray(dataset[()])
        except DAMAGED as error:
            raise _damaged(self._file, error) from error
        if dataset.attrs.get(_DTYPE) == "bfloat16":
            return array.view(ml_dtypes.bfloat16)
        return array

    def read_best(self, index: int) -> np.ndarray:
        """The value of a weight at the best epoch, by its index in the state."""
        return as_saved(self._best[best_member(index)], self.state.variables[index].dtype)

    def read_text(self, member: str) -> str:
        """The text of a member."""
        return self._archive.read(member).decode()

    def assets(self) -> dict[str, bytes]:
        """The files of layers, by their names in the archive."""
        names = [name for name in self._archive.namelist() if name.startswith(ASSETS)]
        return {name: self._archive.read(name) for name in names if not name.endswith("/")}

    def layout(self) -> tuple[dict[str, str], list[str]]:
        """The groups of the weights file, with their layers' names, and all places."""
        groups: dict[str, str] = {}
        places: list[str] = []

        def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
            if isinstance(node, h5py.Dataset):
                places.append(path)
            elif path.split("/")[-1] == "vars":
                groups[path] = str(node.attrs.get("name", ""))

        self._weights.visititems(visit)
        return groups, places

    def _member(self, name: str) -> _Window:
        """Opens a member so that reading any place of it is quick, as it is not compressed."""
        info = self._archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed, which Keras does not do")
        return self._open.enter_context(_Window(self._file, info))


class _Window(io.RawIOBase):
    """A member of a zip archive as a file; zipfile's own goes back only by starting anew."""

    def __init__(self, file: Path, info: zipfile.ZipInfo) -> None:
        super().__init__()
        self._file = file.open("rb")
        self._file.seek(info.header_offset)
        header = self._file.read(30)
        lengths = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        self._start = info.header_offset + 30 + sum(lengths)  # behind its name and extra fields
        self._size = info.file_size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = max(0, self._size - self._position)
        self._file.seek(self._start + self._position)
        number = self._file.readinto(memoryview(buffer)[:left])
        self._position += number
        return number

    def close(self) -> None:
        self._file.close()
        super().close()


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


def best_member(index: int) -> str:
    """The name of a weight in the archive of the best weights, without its suffix."""
    return f"arr_{index}"


def as_saved(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of a ``.npz`` file in the dtype of its variable.

    NumPy stores dtypes that it does not know, such as bfloat16, as plain bytes.
    """
    return array.view(dtype_of(dtype)) if array.dtype.kind == "V" else array


def saved(arrays: Iterable[np.ndarray]) -> bytes:
    """The content of a member with these arrays."""
    content = io.BytesIO()
    np.savez(content, *arrays)
    return content.getvalue()


def saved_by_rank(by_rank: Mapping[str, np.ndarray]) -> bytes:
    """The content of the member with what the steps of each rank keep for themselves."""
    return saved([np.array(list(by_rank)), *by_rank.values()])
