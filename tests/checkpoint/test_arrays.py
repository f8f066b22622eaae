"""Archives of arrays: what was written comes back, and what was changed is found."""

from __future__ import annotations

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from ooodist.checkpoint.arrays import Entry, Reader, Writer, dtype_of
from ooodist.errors import UserError
from tests.checkpoint.examples import assert_same

DTYPES = (
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool"),
)
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def any_array(draw: st.DrawFn) -> np.ndarray:
    """An array of any bits, also those of no number, contiguous or not."""
    dtype = dtype_of(draw(st.sampled_from(DTYPES)))
    shape = draw(SHAPES)
    size = int(np.prod(shape, dtype=int))
    content = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    if dtype.kind == "b":
        content = bytes(byte % 2 for byte in content)
    array = np.frombuffer(content, dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


@given(written=st.lists(st.tuples(st.text(max_size=6), any_array()), max_size=4))
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, np.ndarray]]
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "part-0.npz"
    written = [(name.replace("\0", ""), array) for name, array in written]
    with Writer(file) as writer:
        entries = [writer.write(name, array) for name, array in written]
    assert len({entry.member for entry in entries}) == len(written)
    reader = Reader(file)
    for entry, (_, array) in reversed(list(zip(entries, written, strict=True))):
        reader.verify(entry)
        assert_same(reader.read(entry), array)
    reader.close()


@given(array=any_array().filter(lambda array: array.size > 0), data=st.data())
def test_any_changed_bit_of_a_value_is_found(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "part-0.npz"
    with Writer(file) as writer:
        entry = writer.write("a", array)
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        member = archive.getinfo(entry.member)
        end = archive.start_dir  # behind the values there is a descriptor of 24 bytes at most
    place = data.draw(st.integers(end - 24 - array.nbytes, end - 25))
    assert place > member.header_offset
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    reader = Reader(file)
    for read in (reader.read, reader.verify):
        with pytest.raises(UserError, match=rf"{file} is damaged"):
            read(entry)
    reader.close()


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, list[Entry]]:
    file = tmp_path / "part-3.npz"
    with Writer(file) as writer:
        names = ("dense/kernel", "dense/bias", "dense/bias", "dense/bias")
        entries = [
            writer.write(name, np.full((3, index), index, np.float32))
            for index, name in enumerate(names, 1)
        ]
    return file, entries


def test_an_entry_says_all(file: tuple[Path, list[Entry]]) -> None:
    assert file[1][0].file == "part-3.npz"
    assert file[1][0].shape == (3, 1)
    assert file[1][0].dtype == "float32"
    assert len(file[1][0].digest) == 64
    assert [entry.member for entry in file[1]] == [
        *("dense/kernel.npy", "dense/bias.npy", "dense/bias#2.npy", "dense/bias#3.npy")
    ]


def test_numpy_reads_it(file: tuple[Path, list[Entry]]) -> None:
    with np.load(file[0], allow_pickle=False) as arrays:
        assert sorted(arrays.files) == [
            "dense/bias",
            "dense/bias#2",
            "dense/bias#3",
            "dense/kernel",
        ]
        np.testing.assert_array_equal(arrays["dense/bias#3"], np.full((3, 4), 4, np.float32))


def test_equal_arrays_make_equal_files(file: tuple[Path, list[Entry]], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "part-3.npz"
    reader = Reader(file[0])
    with Writer(other) as writer:
        for entry in file[1]:
            writer.write(entry.member.partition("#")[0].removesuffix(".npy"), reader.read(entry))
    reader.close()
    assert other.read_bytes() == file[0].read_bytes()


def test_an_array_is_read_alone(file: tuple[Path, list[Entry]]) -> None:
    """What is wrong with another does not matter, so nobody has read it."""
    path, (first, second, *_) = file
    content = bytearray(path.read_bytes())
    place = content.index(np.float32(1).tobytes())  # in the first
    content[place] ^= 1
    path.write_bytes(content)
    reader = Reader(path)
    with pytest.raises(UserError, match=r"damaged \(dense/kernel"):
        reader.read(first)
    np.testing.assert_array_equal(reader.read(second), np.full((3, 2), 2, np.float32))
    reader.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"member": "dense/nothing.npy"}, "dense/nothing.npy"),
        ({"shape": (4, 1)}, "it ends too early"),
        ({"shape": (2, 1)}, "it is longer than it was"),
        ({"dtype": "int32"}, None),  # the same bytes; whose they are is the manifest's word
        ({"digest": "0" * 64}, "has other values than were written"),
    ],
)
def test_what_does_not_fit_its_entry(
    file: tuple[Path, list[Entry]], changed: dict[str, object], message: str | None
) -> None:
    path, (first, *_) = file
    entry = Entry(**{**vars(first), **changed})
    reader = Reader(path)
    if message is None:
        assert reader.read(entry).dtype == np.int32
    else:
        with pytest.raises(UserError, match=message):
            reader.read(entry)
    reader.close()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_archive_is_named(file: tuple[Path, list[Entry]], share: float) -> None:
    content = file[0].read_bytes()
    file[0].write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=rf"{file[0]} is damaged"):
        Reader(file[0])


def test_an_archive_of_another_version_of_zip_is_named(file: tuple[Path, list[Entry]]) -> None:
    """As fuzzing has found: zipfile has an error of its own for it."""
    path, _ = file
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 255  # the version that it needs, in the directory
    damaged = path.with_name("damaged.npz")
    damaged.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged\.npz is damaged \(zip file version 25\.5\)"):
        Reader(damaged)


def test_dtypes_by_name() -> None:
    assert dtype_of("bfloat16") == ml_dtypes.bfloat16
    assert dtype_of("float32") == np.float32
    with pytest.raises(TypeError):
        dtype_of("float33")
