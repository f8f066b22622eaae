"""Clients of the zoo's service that send anything, and what they are told."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.zoo.entry import WEIGHTS_MEMBER, Meta
from ooodist.zoo.reading import members
from ooodist.zoo.service import zoo_pb2
from ooodist.zoo.service.server import Service, serve
from ooodist.zoo.zoo import Row, Zoo
from tests.zoo.serving import (
    ANNA,
    CALLS,
    NOTHING,
    TOKENS,
    call,
    listed,
    make_file,
    naming,
    refused,
    upload,
    uploads,
    wait_until,
)

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def one_service(temporary: Path) -> Iterator[Service]:
    """One for all examples: whatever was sent to it before, it must not matter."""
    with Zoo(temporary / "zoo") as zoo:
        zoo.add(make_file(temporary / "public.keras", Meta("public", task="toy")))
        before = zoo.list()
        with serve(zoo, "127.0.0.1:0", tokens=TOKENS, admins=["anna"]) as service:
            yield service
            assert set(listed(service)) == {row.id for row in before}
            wait_until(lambda: not uploads())


@pytest.fixture(scope="module")
def new(temporary: Path) -> bytes:
    """A file that could be registered."""
    return make_file(temporary / "new.keras", Meta("new", task="toy"), units=9).read_bytes()


def field(number: int, value: float | str | bytes) -> bytes:
    """A field of a message on the wire."""

    def varint(value: int) -> bytes:
        low, high = value & 127, value >> 7
        return bytes([low | 128]) + varint(high) if high else bytes([low])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def _is_message(content: bytes) -> bool:
    try:
        zoo_pb2.ListRequest.FromString(content)
    except DecodeError:
        return False
    return True


class TestHostileClients:
    @given(name=st.sampled_from(CALLS), asked=st.lists(st.binary(max_size=100), max_size=3))
    def test_random_messages_are_refused(
        self, one_service: Service, name: str, asked: list[bytes]
    ) -> None:
        if name == "List" and asked and _is_message(asked[0]):
            assert call(one_service, name, asked)  # which says nothing that could be wrong
        else:
            assert refused(one_service, name, asked)[0] is not Code.INTERNAL

    @given(name=st.sampled_from(CALLS), number=st.integers(1, 9), value=st.one_of(
        st.integers(0, 2**64 - 1), st.floats(), st.text(max_size=40), st.binary(max_size=40),
    ))  # fmt: skip
    def test_random_fields_are_refused(
        self, one_service: Service, name: str, number: int, value: float | str | bytes
    ) -> None:
        """Of any number and type, which another version could have, or somebody who tries."""
        message = field(number, value)
        if name == "List":
            assert call(one_service, name, [message])
        else:
            assert refused(one_service, name, [message])[0] is not Code.INTERNAL

    def test_unknown_fields_do_not_matter(self, one_service: Service) -> None:
        """Only so a later version can have more."""
        unknown = field(1000, "../../etc/passwd") + field(1001, 2**64 - 1)
        (row,) = listed(one_service).values()
        asked = zoo_pb2.FetchRequest(id=row.id).SerializeToString()
        assert call(one_service, "Fetch", [asked + unknown]) == call(one_service, "Fetch", [asked])

    @pytest.mark.parametrize("name", CALLS)
    def test_a_client_of_before_protobuf_is_told(self, one_service: Service, name: str) -> None:
        with grpc.insecure_channel(one_service.address) as channel:
            method = channel.stream_stream(f"/ooodist.Zoo/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                list(method(iter([b"{}"]), metadata=[("authorization", f"Bearer {ANNA}")]))
        assert caught.value.code() is Code.UNIMPLEMENTED
        assert refused(one_service, name, [b'{"id": "a"}'])[0] is Code.INVALID_ARGUMENT

    @given(model=st.text(max_size=40))
    def test_random_ids_are_refused(self, one_service: Service, model: str) -> None:
        assert refused(one_service, "Fetch", naming(model))[0] is Code.NOT_FOUND

    @pytest.mark.parametrize("kind", ["random", "cut off", "flipped", "other zip", "empty zip"])
    def test_what_is_no_model_is_refused(self, one_service: Service, new: bytes, kind: str) -> None:
        other = io.BytesIO()
        with zipfile.ZipFile(other, "w") as archive:
            if kind == "other zip":
                archive.writestr("../../evil.py", "import os")
        middle = len(new) // 2
        content = {
            "random": np.random.default_rng(0).bytes(10_000),
            "cut off": new[:middle],
            "flipped": new[:middle] + bytes([new[middle] ^ 255]) + new[middle + 1 :],
        }.get(kind, other.getvalue())
        code, details = refused(one_service, "Register", upload(content))
        assert code is Code.INVALID_ARGUMENT
        assert details.startswith("model file that was sent")
        assert len(listed(one_service)) == 1

    @pytest.mark.parametrize(
        "kind", ["bomb", "huge JSON", "deep JSON", "wrong shapes", "no weights", "path", "NaN"]
    )
    def test_a_hostile_model_is_refused(self, one_service: Service, new: bytes, kind: str) -> None:
        def changed(name: str, content: bytes) -> bytes:
            if name == members.GRAPH_MEMBER and kind == "wrong shapes":
                return content.replace(b'"size":9', b'"size":1000000000')
            if name == members.MEMBER:
                if kind == "deep JSON":
                    return b"[" * 2**20 + b"]" * 2**20
                if kind == "huge JSON":
                    return b" " * (members.MOST_JSON_BYTES + 1) + content
                if kind == "NaN":
                    return content.replace(b'"metrics":{}', b'"metrics":{"loss":NaN}')
            if kind == "bomb" and name == "config.json":
                return bytes(2 * members.MOST_UNPACKED_BYTES)
            return content

        hostile = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(new)) as old,
            zipfile.ZipFile(hostile, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name in old.namelist():
                if not (kind == "no weights" and name == WEIGHTS_MEMBER):
                    archive.writestr(name, changed(name, old.read(name)))
            if kind == "path":
                archive.writestr("../../../tmp/evil", b"evil")
        content = hostile.getvalue()
        assert content != new
        code, details = refused(one_service, "Register", upload(content))
        assert code is Code.INVALID_ARGUMENT
        assert details.startswith("model file that was sent")
        assert len(listed(one_service)) == 1

    def test_an_unknown_call_is_refused(self, one_service: Service) -> None:
        assert refused(one_service, "Delete", NOTHING)[0] is Code.UNIMPLEMENTED

    def test_many_at_once_are_answered(self, one_service: Service) -> None:
        """Good and bad calls of many threads, more than there are workers."""

        def ask(number: int) -> grpc.StatusCode | None:
            asked = NOTHING if number % 3 == 0 else [b"{]"]
            name = ("List", "Query", "Fetch")[number % 3]
            try:
                call(one_service, name, asked)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
            return None

        with ThreadPoolExecutor(24) as pool:
            codes = list(pool.map(ask, range(24)))
        assert codes == [None, Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT] * 8

    def test_what_goes_wrong_inside_is_not_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Zoo):
            def list(self) -> list[Row]:
                raise RuntimeError(f"nobody thought of {tmp_path}")

        with serve(Broken(str(tmp_path)), "127.0.0.1:0", tokens=TOKENS) as service:
            code, details = refused(service, "List", NOTHING)
        assert (code, details) == (Code.INTERNAL, "the service failed; its log says why")
        assert "nobody thought of" in caplog.text

    def test_paths_of_the_server_are_not_told(self, tmp_path: Path) -> None:
        class Unlucky(Zoo):
            def list(self) -> list[Row]:
                raise UserError(f"zoo {tmp_path}/models cannot be read")

        with serve(Unlucky(str(tmp_path)), "127.0.0.1:0", tokens=TOKENS) as service:
            code, details = refused(service, "List", NOTHING)
        assert (code, details) == (Code.INVALID_ARGUMENT, "zoo the zoo/models cannot be read")
