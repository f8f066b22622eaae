"""A zoo in an S3 bucket, as moto's server imitates it on this machine."""

from __future__ import annotations

import io
import random
import signal
import subprocess
import time
from pathlib import Path

import fsspec
import pytest

from ooodist.errors import UserError
from ooodist.zoo import zoo as module
from ooodist.zoo.entry import Meta
from ooodist.zoo.storage import LEFTOVER_SECONDS, Storage
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.entries import Adder, ids, outline, sizes
from tests.zoo.writers import start


def test_a_bucket_is_used_as_a_folder_is(bucket: str, add: Adder, tmp_path: Path) -> None:
    address = f"{bucket}/teams/zoo"
    with Zoo(address, index=tmp_path / "index.sqlite") as zoo:
        assert zoo.list() == []
        first = add(zoo, [4, 8], name="first")
        second = add(zoo, [4, 9], name="second")
        assert ids(zoo.query(outline([4, 9]), Wanted())) == [second]
        assert zoo.fetch(first)[1]["layer1/kernel"].shape == (4, 8)
        zoo.evict(second)
        with pytest.raises(UserError, match="there is no model"):
            zoo.fetch(second)
    with Zoo(address, index=tmp_path / "other.sqlite") as elsewhere:
        assert [(row.id, row.meta.name) for row in elsewhere.list()] == [(first, "first")]
    with Zoo(bucket, index=tmp_path / "above.sqlite") as above:
        assert above.list() == []


def test_a_file_gets_its_name_when_it_is_complete(bucket: str) -> None:
    one, other = Storage(bucket), Storage(bucket)
    with one.incomplete(io.BytesIO(b"model")) as copy:
        assert sizes(one) == sizes(other) == {}
        one.complete(copy, "a")
        assert sizes(one) == sizes(other) == {"a": 5}
    assert abs(other.created("a") - time.time()) < 60
    with other.open("a") as file:
        assert file.read() == b"model"
    for _ in range(2):  # what is not there is deleted already
        other.delete("a")
    assert sizes(one) == {}
    with pytest.raises(FileNotFoundError):
        one.open("a")


def test_what_killed_writers_left_is_removed_after_an_hour(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(bucket)
    monkeypatch.setattr(storage, "_delete", lambda path: None)  # as if it had been killed
    with storage.incomplete(io.BytesIO(b"model")):
        pass
    bare = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    assert sizes(storage) == {}
    assert len(bare.ls(bucket)) == 1
    later = time.time() + LEFTOVER_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert sizes(storage) == {}
    assert bare.ls(bucket) == []


def test_several_writers_of_which_some_are_killed(
    bucket: str, add: Adder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they said to have added is there, and all that is there can be read."""
    monkeypatch.setattr(module, "LISTING_SECONDS", 0.0)
    generator = random.Random(0)
    killed: list[subprocess.Popen[str]] = []
    for number in range(3):
        files = [add.file([1000, 1000 - k], Meta(f"killed {number} {k}")) for k in range(3)]
        killed.append(start(bucket, *files, index=tmp_path / f"killed-{number}.sqlite"))
    files = [add.file([4, 3 + k], Meta(f"kept {k}")) for k in range(4)]
    kept = start(bucket, *files, index=tmp_path / "kept.sqlite")
    said: set[str] = set()
    for process in killed:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(generator.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        said |= set(process.communicate()[0].split())
    printed, errors = kept.communicate(timeout=60)
    assert kept.returncode == 0, errors
    said |= set(printed.split()) - {"ready"}
    with Zoo(bucket, index=tmp_path / "index.sqlite") as zoo:
        rows = zoo.list()
        assert said <= {row.id for row in rows}
        names = {row.meta.name for row in rows}
        assert {f"kept {k}" for k in range(4)} <= names
        for row in rows:
            zoo.fetch(row.id)


@pytest.mark.parametrize("folder", ["", "/zoo"])
@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_is_not_there_is_a_user_error(folder: str, tmp_path: Path) -> None:
    missing = f"s3://no-such-bucket{folder}"
    with pytest.raises(UserError, match=f"zoo {missing} cannot be read: .*bucket does not exist"):
        Zoo(missing, index=tmp_path / "index.sqlite")


def test_a_server_that_is_not_there_is_a_user_error(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(UserError, match=f"zoo {bucket} cannot be read: .*127.0.0.1:9"):
        Zoo(bucket, index=tmp_path / "index.sqlite")
