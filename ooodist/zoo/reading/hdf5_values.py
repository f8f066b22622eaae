"""Reads values from an untrusted HDF5 file, only where they are stored contiguously in it.

HDF5 can also link to other files, decompress, or supply values that were never stored; all of that
is refused before anything is read.
"""

from __future__ import annotations

from typing import Any

import h5py

from ooodist.checkpoint.archive import number_type
from ooodist.errors import UserError


def plain_dataset(store: h5py.File, place: str) -> h5py.Dataset:
    """The numeric data set of this name, whose values are contiguous in the file.

    Raises:
        UserError: there is no such data set, or it is of another kind.
    """
    node: Any = store
    for part in place.split("/"):
        if not isinstance(node, h5py.Group) or not isinstance(
            node.get(part, getlink=True), h5py.HardLink
        ):
            raise UserError(f"there is no data set {place[:200]!r}")
        node = node[part]
    if not isinstance(node, h5py.Dataset) or node.shape is None:
        raise UserError(f"{place[:200]!r} is no data set")
    elsewhere = node.external is not None or node.chunks is not None or node.is_virtual
    if elsewhere or node.id.get_storage_size() != node.nbytes:
        raise UserError(f"the values of {place[:200]!r} are not stored one after the other")
    if number_type(node) is None:
        raise UserError(f"the values of {place[:200]!r} are {node.dtype}, no numbers")
    return node
