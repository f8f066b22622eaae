"""Values of files that mean harm: only plain numbers in the file itself are read."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ooodist.errors import UserError
from ooodist.zoo.entry import WEIGHTS_MEMBER, check, read, read_with_weights
from tests.zoo.entries import chain, write_plain

WRONG_PLACES = ["", "/", "layer1", "layer1/none", "layer1/kernel/x", "..", "group//kernel", "\0"]


@pytest.mark.parametrize("place", WRONG_PLACES)
def test_a_place_that_is_none_is_refused(place: str, tmp_path: Path) -> None:
    write_plain(
        tmp_path / "a.keras",
        chain([2, 3]),
        content=lambda content: content["places"].update({"layer1/kernel": place}),
    )
    read(tmp_path / "a.keras")
    with pytest.raises(UserError, match=r"model file .*a\.keras"):
        read_with_weights(tmp_path / "a.keras")


def _external_link(store: h5py.File) -> None:
    store["layer1/kernel"] = h5py.ExternalLink("/etc/passwd", "layer1/kernel")


def _soft_link(store: h5py.File) -> None:
    store["layer1/kernel"] = h5py.SoftLink("/layer1/bias")


def _external_storage(store: h5py.File) -> None:
    external = [("/etc/passwd", 0, 24)]
    store.create_dataset("layer1/kernel", (2, 3), np.float32, external=external)


def _virtual(store: h5py.File) -> None:
    layout = h5py.VirtualLayout((2, 3), np.float32)
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "x", (2, 3))
    store.create_virtual_dataset("layer1/kernel", layout)


def _compressed(store: h5py.File) -> None:
    store.create_dataset("layer1/kernel", data=np.zeros((2, 3), np.float32), compression="gzip")


def _never_stored(store: h5py.File) -> None:
    store.create_dataset("layer1/kernel", (2, 3), np.float32)


def _text(store: h5py.File) -> None:
    store["layer1/kernel"] = np.full((2, 3), b"text", object)


def _complex(store: h5py.File) -> None:
    store["layer1/kernel"] = np.zeros((2, 3), np.complex64)


def _other_shape(store: h5py.File) -> None:
    store["layer1/kernel"] = np.zeros((3, 2), np.float32)


def _void(store: h5py.File) -> None:
    store["layer1/kernel"] = np.zeros((2, 3), "V2")


def _empty(store: h5py.File) -> None:
    store["layer1/kernel"] = h5py.Empty("f4")


HOSTILE_STORES = [
    _external_link, _soft_link, _external_storage, _virtual, _compressed, _never_stored, _text,
    _complex, _other_shape, _void, _empty,
]  # fmt: skip


@pytest.mark.parametrize("kernel", HOSTILE_STORES)
def test_values_that_are_not_plain_numbers_in_the_file_are_refused(
    kernel: Callable[[h5py.File], None], tmp_path: Path
) -> None:
    def store(opened: h5py.File) -> None:
        opened["layer1/bias"] = np.zeros(3, np.float32)
        kernel(opened)

    write_plain(tmp_path / "a.keras", chain([2, 3]), store=store)
    for reads in (check, read_with_weights):
        with pytest.raises(UserError, match="layer1/kernel"):
            reads(tmp_path / "a.keras")


def test_one_data_set_for_many_weights_takes_no_memory(tmp_path: Path) -> None:
    """A hundred weights of 1 MB, all at one place in a file of 1 MB."""
    graph = chain([1, *[500] * 100])

    def store(opened: h5py.File) -> None:
        opened["kernel"] = np.zeros((500, 500), np.float32)
        opened["bias"] = np.zeros(500, np.float32)
        opened["first"] = np.zeros((1, 500), np.float32)

    def content(said: dict[str, Any]) -> None:
        said["places"] = {name: name.rpartition("/")[2] for name in said["places"]}
        said["places"]["layer1/kernel"] = "first"

    write_plain(tmp_path / "a.keras", graph, store=store, content=content)
    with pytest.raises(UserError, match="its weights are larger than"):
        read_with_weights(tmp_path / "a.keras")


def test_damaged_hdf5_ends_with_a_user_error(tmp_path: Path) -> None:
    """With the right CRC, as someone would make it who means harm."""
    write_plain(tmp_path / "a.keras", chain([4, 5, 6]))
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        whole = archive.read(WEIGHTS_MEMBER)
    refused = 0
    for seed in range(300):
        generator = random.Random(seed)
        content = bytearray(whole)
        if seed % 4 == 0:
            del content[generator.randrange(len(content)) :]
        else:
            for _ in range(generator.choice([1, 3, 30])):
                content[generator.randrange(len(content))] = generator.randrange(256)
        write_plain(
            tmp_path / "b.keras", chain([4, 5, 6]), members={WEIGHTS_MEMBER: bytes(content)}
        )
        try:
            weights = read_with_weights(tmp_path / "b.keras")[1]
        except UserError:
            refused += 1
        else:
            assert [value.shape for value in weights.values()] == [(4, 5), (5,), (5, 6), (6,)]
    assert refused > 100
