"""Files that are damaged, or not what they say, end with a UserError."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import outline_of, plain_of
from ooodist.zoo.entry import WEIGHTS_MEMBER, check, read, read_for_index
from ooodist.zoo.reading import bounded_json
from ooodist.zoo.reading import members as module
from ooodist.zoo.reading.members import MEMBER
from tests.zoo.entries import chain, write_plain


def changed(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(changes)


def without(text: bytes) -> Callable[[bytes], Any]:
    """A parser of JSON that must not get this text."""
    loads = json.loads

    def parse(given: bytes) -> Any:
        assert given != text
        return loads(given)

    return parse


WRONG_JSON: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (changed(version=4), "is of version 4, where this ooodist reads 1 to 3"),
    (changed(version=None), "is of version None"),
    (lambda content: content.pop("version"), "'version'"),
    (lambda content: content.pop("graph"), "'graph'"),
    (lambda content: content.pop("outline"), "'outline'"),
    (lambda content: content["outline"].pop(), "its outline is not that of its graph"),
    (changed(places={}), "weight layer1/kernel has no place"),
    (changed(places=None), "cannot be read or is damaged"),
    (changed(places={"layer1/kernel": 3, "layer1/bias": "layer1/bias"}), "has no place"),
]


@pytest.mark.parametrize(("content", "message"), WRONG_JSON)
def test_json_that_is_not_of_the_format_is_refused(
    content: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]), content=content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"3", b"{", b"\xff\xfe", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}"],
)
def test_json_that_is_none_is_refused(text: bytes, tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]), members={MEMBER: text})
    with pytest.raises(UserError, match=r"model file .*a\.keras"):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_found_by_the_check(value: float, tmp_path: Path) -> None:
    def store(opened: h5py.File) -> None:
        opened["layer1/kernel"] = np.full((2, 3), value, np.float16)
        opened["layer1/bias"] = np.zeros(3, np.float32)

    write_plain(tmp_path / "a.keras", chain([2, 3]), store=store)
    with pytest.raises(UserError, match="weight layer1/kernel is not finite"):
        check(tmp_path / "a.keras")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../b", "a\\b"])
def test_members_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]), members={name: b""})
    with pytest.raises(UserError, match="leads out of it"):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize("name", ["x.pkl", "assets/x.pkl", "assets", "model.weights.h5.bak", "x/"])
def test_members_that_nobody_needs_are_refused(name: str, tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]), members={name: b"cos\nsystem\n"})
    with pytest.raises(UserError, match="no part of a model; there may be metadata"):
        read(tmp_path / "a.keras")
    write_plain(tmp_path / "b.keras", chain([2, 3]), members={"assets/a/words.txt": b"a\nb\n"})
    assert check(tmp_path / "b.keras")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_config_that_is_no_json_is_found_by_the_check(text: bytes, tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]), members={"config.json": text})
    with pytest.raises(UserError, match=r"model file .*a\.keras"):
        check(tmp_path / "a.keras")


@pytest.mark.parametrize("name", module.MEMBERS)
def test_a_file_without_one_of_the_members_is_refused(name: str, tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]))
    with (
        zipfile.ZipFile(tmp_path / "a.keras") as whole,
        zipfile.ZipFile(tmp_path / "b.keras", "w") as part,
    ):
        for member in whole.namelist():
            if member != name:
                part.writestr(member, whole.read(member))
    with pytest.raises(UserError, match=f"it has no member {name}"):
        read(tmp_path / "b.keras")


@pytest.mark.parametrize(
    "outline",
    [None, 3, [], [["Dense", [0], []]], [["Input", [], [[0]]]], [["x" * 1001, [], []]], [[]]],
)
def test_an_outline_that_is_none_is_refused(outline: Any, tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]), content=changed(outline=outline))
    for reading in (read_for_index, read, check):
        with pytest.raises(UserError, match=r"model file .*a\.keras"):
            reading(tmp_path / "a.keras")


def test_an_outline_of_another_model_is_found_by_whoever_reads_the_graph(tmp_path: Path) -> None:
    other = plain_of(outline_of(chain([2, 4])))
    write_plain(tmp_path / "a.keras", chain([2, 3]), content=changed(outline=other))
    assert read_for_index(tmp_path / "a.keras")[1] == outline_of(chain([2, 4]))
    for reading in (read, check):
        with pytest.raises(UserError, match="its outline is not that of its graph"):
            reading(tmp_path / "a.keras")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3]))
    with zipfile.ZipFile(tmp_path / "a.keras", "a") as archive:
        archive.writestr(MEMBER, b"{}")
    with pytest.raises(UserError, match="several members of the same name"):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize("member", [MEMBER, WEIGHTS_MEMBER, "assets/more.txt"])
def test_a_zip_bomb_is_not_unpacked(member: str, tmp_path: Path) -> None:
    """300 MiB of blanks, which are 300 KiB in the file."""
    write_plain(tmp_path / "a.keras", chain([2, 3]))
    with (
        zipfile.ZipFile(tmp_path / "a.keras") as whole,
        zipfile.ZipFile(tmp_path / "b.keras", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in {*whole.namelist()} - {member}:
            bomb.writestr(name, whole.read(name))
        with bomb.open(member, "w") as opened:
            for _ in range(300):
                opened.write(b" " * 2**20)
    start = time.process_time()
    with pytest.raises(UserError, match="far more than the file"):
        check(tmp_path / "b.keras")
    assert time.process_time() - start < 1


def test_json_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    write_plain(
        tmp_path / "a.keras",
        chain([2, 3]),
        members={MEMBER: b" " * (module.MOST_JSON_BYTES + 1)},
    )
    with pytest.raises(UserError, match="it may have 67108864"):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize("member", [MEMBER, "config.json"])
def test_json_of_too_many_values_is_not_parsed(member: str, tmp_path: Path) -> None:
    text = b"[" + b",".join([b"{}"] * 1_200_000) + b"]"
    for file, compression, message in (
        ("a.keras", zipfile.ZIP_STORED, "values; there may be 2000000"),
        (
            "b.keras",
            zipfile.ZIP_BZIP2,
            rf"{member} has 3600001 bytes, packed into \d+; it may have",
        ),
    ):
        write_plain(tmp_path / file, chain([2, 3]), members={member: text}, compression=compression)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bounded_json, "FREE_BYTES", 2**20)
            patch.setattr(json, "loads", without(text))
            with pytest.raises(UserError, match=message):
                check(tmp_path / file)


def test_no_more_is_unpacked_than_is_declared(tmp_path: Path) -> None:
    """A size that is too small, in the member and in the directory at the end."""
    text = b" " * 2**26
    write_plain(
        tmp_path / "a.keras",
        chain([2, 3]),
        members={"config.json": text},
        compression=zipfile.ZIP_DEFLATED,
    )
    content = (tmp_path / "a.keras").read_bytes()
    sized = content.replace(struct.pack("<L", len(text)), struct.pack("<L", 100))
    assert sized != content
    tracemalloc.start()
    with pytest.raises(UserError):
        check(io.BytesIO(sized))
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_places_of_thousands_of_groups_are_refused(tmp_path: Path) -> None:
    def store(opened: h5py.File) -> None:
        opened["a"] = opened["/"]  # which contains itself
        opened["w"] = np.zeros((2, 3), np.float32)

    far = {"layer1/kernel": "a/" * 100_000 + "w", "layer1/bias": "w"}
    write_plain(tmp_path / "a.keras", chain([2, 3]), store=store, content=changed(places=far))
    with pytest.raises(UserError, match="layer1/kernel has no place, or one of over 1000 letters"):
        check(tmp_path / "a.keras")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no model file"):
        read(tmp_path / "none.keras")
    with pytest.raises(UserError, match="there is no model file"):
        read(tmp_path)
    (tmp_path / "a.keras").write_bytes(b"no archive")
    with pytest.raises(UserError, match="File is not a zip file"):
        read(tmp_path / "a.keras")


FUZZ = """\
import random, sys
from pathlib import Path
from ooodist.errors import UserError
from ooodist.zoo import entry

whole = Path(sys.argv[1]).read_bytes()
file = Path(sys.argv[1] + ".damaged")
refused = 0
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    generator = random.Random(seed)
    content = bytearray(whole)
    if generator.random() < 0.3:
        del content[generator.randrange(len(content)):]
    else:
        for _ in range(generator.choice([1, 1, 3, 30])):
            content[generator.randrange(len(content))] = generator.randrange(256)
    file.write_bytes(content)
    try:
        entry.check(file)
    except UserError:
        refused += 1
print(refused)
"""


def test_damaged_files_end_with_a_user_error(tmp_path: Path) -> None:
    """In a process of its own, since HDF5 is a library in C.

    A changed byte of a member is found by its CRC; one of a header may mean nothing.
    """
    file = tmp_path / "a.keras"
    write_plain(file, chain([8, 16, 4]))
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, file, "0", "400"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 350
