"""The calls of the zoo's service, by plain gRPC: who may do what, and what is refused."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from ooodist.zoo.entry import Meta
from ooodist.zoo.service import messages, zoo_pb2
from ooodist.zoo.service.limits import CHUNK_BYTES, MESSAGE_BYTES, Limits
from ooodist.zoo.service.messages import SERVICE
from ooodist.zoo.service.server import Service, serve
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.serving import (
    ANNA,
    BOB,
    CALLS,
    NOTHING,
    ROOT,
    TOKENS,
    call,
    listed,
    make_file,
    make_model,
    naming,
    part,
    refused,
    upload,
    uploads,
    wait_until,
)

LARGEST = 4 * 2**20
TIMEOUT, LONG_TIMEOUT = 1.0, 60.0  # seconds
LIMITS = Limits(
    calls=8,
    calls_of_user=3,
    uploads=3,
    uploads_of_user=2,
    file_bytes=LARGEST,
    timeout=TIMEOUT,
)
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(make_model())


@pytest.fixture(scope="module")
def public(temporary: Path) -> bytes:
    """A file that is in the zoo, for everybody."""
    return make_file(
        temporary / "public.keras", Meta("public", task="toy", metrics={"accuracy": 0.5})
    ).read_bytes()


@pytest.fixture(scope="module")
def new(temporary: Path) -> bytes:
    """A file that is not."""
    return make_file(temporary / "new.keras", Meta("new", task="toy"), units=9).read_bytes()


@pytest.fixture
def zoo(temporary: Path, zoo: Zoo, public: bytes) -> Zoo:
    """With one model."""
    zoo.add(temporary / "public.keras")
    return zoo


@pytest.fixture
def service(zoo: Zoo) -> Iterator[Service]:
    with _serving(zoo, LIMITS) as service:
        yield service


@pytest.fixture
def patient_service(zoo: Zoo) -> Iterator[Service]:
    """What it does long before it would lose its timeout, it does for another reason."""
    with _serving(zoo, replace(LIMITS, timeout=LONG_TIMEOUT)) as service:
        yield service


@contextmanager
def _serving(zoo: Zoo, limits: Limits) -> Iterator[Service]:
    """After each test it must still answer, and have no file left that was uploaded."""
    with serve(zoo, "127.0.0.1:0", tokens=TOKENS, admins=["root"], limits=limits) as service:
        yield service
        assert "public" in [row.meta.name for row in listed(service).values()]
        wait_until(lambda: not uploads())


@pytest.fixture
def private(zoo: Zoo, tmp_path: Path) -> str:
    """The id of a model that only bob may use."""
    return zoo.add(make_file(tmp_path / "bob.keras", Meta("bob's", access=("bob",)), units=10))


class TestTokens:
    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.parametrize(
        "token", [None, "", "wrong", ANNA[:-1], ANNA + "x", ANNA + " ", ANNA.upper(), "anna"]
    )
    def test_without_the_right_one_nothing_is_done(
        self, service: Service, name: str, token: str | None
    ) -> None:
        code, details = refused(service, name, NOTHING, token)
        assert code is Code.UNAUTHENTICATED
        assert details in ("the token is not one of this service", "the service needs a token")

    @pytest.mark.parametrize("header", [f"bearer {ANNA}", ANNA, f"Basic {ANNA}", f"Bearer  {ANNA}"])
    def test_must_stand_in_its_header(self, service: Service, header: str) -> None:
        with grpc.insecure_channel(service.address) as channel:
            method = channel.stream_stream(f"/{SERVICE}/List")
            with pytest.raises(grpc.RpcError) as caught:
                list(method(iter(NOTHING), metadata=[("authorization", header)], timeout=10))
        assert caught.value.code() is Code.UNAUTHENTICATED

    def test_who_has_none_keeps_no_thread_busy(self, patient_service: Service) -> None:
        """Not even with many calls that never send a message."""
        service = patient_service
        never = threading.Event()

        def nothing() -> Iterator[bytes]:
            never.wait(120)
            yield b""

        with grpc.insecure_channel(service.address) as channel:
            calls = [
                channel.stream_stream(f"/{SERVICE}/{name}")(nothing(), timeout=120)
                for name in CALLS * 4
            ]
            start = time.monotonic()
            assert listed(service)
            for each in calls:
                assert each.code() is Code.UNAUTHENTICATED
            assert time.monotonic() - start < LONG_TIMEOUT / 2
            never.set()


class TestLimits:
    def test_a_user_with_idle_streams_holds_up_nobody_else(self, zoo: Zoo) -> None:
        """A hundred of them, where each may be idle for half a minute."""
        never = threading.Event()

        def nothing() -> Iterator[bytes]:
            never.wait(60)
            yield b""

        with (
            serve(zoo, "127.0.0.1:0", tokens=TOKENS) as service,
            grpc.insecure_channel(service.address, [("grpc.use_local_subchannel_pool", 1)]) as one,
            grpc.insecure_channel(service.address, [("grpc.use_local_subchannel_pool", 1)]) as two,
        ):
            metadata = [("authorization", f"Bearer {ANNA}")]
            calls = [
                channel.stream_stream(f"/{SERVICE}/{CALLS[number % 5]}")(
                    nothing(), metadata=metadata, timeout=60
                )
                for channel in (one, two)
                for number in range(50)
            ]
            wait_until(lambda: sum(each.done() for each in calls) == 100 - 32)
            for _ in range(3):
                start = time.monotonic()
                assert listed(service, BOB)
                assert time.monotonic() - start < 5
            assert sum(each.done() for each in calls) == 100 - 32
            code, details = refused(service, "List", NOTHING, ANNA)
            assert code is Code.RESOURCE_EXHAUSTED
            assert "anna has 32 calls going on, as many as one user may have" in details
            for each in calls:
                each.cancel()
            never.set()
            wait_until(lambda: _is_answered(service, ANNA))

    def test_a_user_with_many_queries_slows_others_by_one(self, zoo: Zoo, graph: Graph) -> None:
        """Only one thread computes at a time, so all of them together would leave others little."""
        running, most = 0, 0
        query = zoo.query

        def watched(*arguments: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.1)
            running -= 1
            return query(*arguments)

        asked = [messages.query_request(outline_of(graph), Wanted(), 1)]
        with (
            pytest.MonkeyPatch.context() as patch,
            _serving(zoo, Limits()) as service,
            ThreadPoolExecutor(8) as pool,
        ):
            patch.setattr(zoo, "query", watched)
            of_anna = [pool.submit(call, service, "Query", asked) for _ in range(8)]
            wait_until(lambda: most > 0)
            assert len(call(service, "Query", asked, BOB)) == 1
            assert not all(each.done() for each in of_anna)
            assert all(len(each.result()) == 1 for each in of_anna)
        assert most <= 2  # one of each user


def _is_answered(service: Service, token: str) -> bool:
    try:
        return bool(listed(service, token))
    except grpc.RpcError:
        return False


class TestQuery:
    def test_finds_the_same_model(self, service: Service, zoo: Zoo, graph: Graph) -> None:
        asked = messages.query_request(outline_of(graph), Wanted(task="toy"), 3)
        (found,) = map(messages.found_of, call(service, "Query", [asked]))
        assert found.id == zoo.list()[0].id
        assert found.score == pytest.approx(1.0)
        assert found.meta.name == "public"

    def test_looks_at_the_token_and_not_at_who_the_client_says_it_is(
        self, service: Service, private: str
    ) -> None:
        """No field says so; as one that is unknown, it does not count."""
        outline = outline_of(graph_of(make_model(10)))
        found = {}
        for token in (ANNA, BOB):
            for claimed in ("anna", "bob", None):
                asked = messages.query_request(outline, Wanted(user=claimed), 10)
                user = zoo_pb2.Meta(parent=claimed)  # its number, 7, is none of a request's
                whole = asked.SerializeToString() + user.SerializeToString()
                answers = call(service, "Query", [whole], token)
                found[token, claimed] = {each.id for each in answers}
        assert all(private not in found[ANNA, claimed] for claimed in ("anna", "bob", None))
        assert all(private in found[BOB, claimed] for claimed in ("anna", "bob", None))

    @pytest.mark.parametrize("count", [0, 101, 2**32 - 1, None])
    def test_of_a_senseless_number_is_refused(self, service: Service, count: int | None) -> None:
        asked = zoo_pb2.QueryRequest(count=count, outline=[zoo_pb2.Operator(op="Dense")])
        code, details = refused(service, "Query", [asked])
        assert code is Code.INVALID_ARGUMENT
        assert f"count is {count or 0}; it must be 1 to 100" in details

    @pytest.mark.parametrize(
        "outline",
        [
            b"",
            b"x",
            b"x" * 2**21,
            b"\x2a",  # an operator of which nothing follows
            b"\x2a\x00",  # one without a kind
            b"\x2a\x00" * 2**20,
            b"\x2a\xff\xff\xff\xff\x0f",
            b"\x2a\x04\x0a\x02\xff\xfe",  # of a kind that is not UTF-8
            b"\x2b" * 100_000,  # groups in groups
            zoo_pb2.QueryRequest(
                outline=[zoo_pb2.Operator(op="Dense", inputs=[0])]
            ).SerializeToString(),
        ],
    )
    def test_with_a_wrong_outline_is_refused(self, service: Service, outline: bytes) -> None:
        asked = zoo_pb2.QueryRequest(count=1).SerializeToString() + outline
        code, _ = refused(service, "Query", [asked])
        assert code is Code.INVALID_ARGUMENT

    def test_that_is_larger_than_any_message_is_refused(self, service: Service) -> None:
        code, _ = refused(service, "Query", [bytes(MESSAGE_BYTES + 1)])
        assert code is Code.RESOURCE_EXHAUSTED

    @pytest.mark.parametrize("name", CALLS)
    def test_that_is_larger_than_those_of_its_call_is_not_even_parsed(
        self, service: Service, name: str
    ) -> None:
        code, details = refused(service, name, [bytes(MESSAGE_BYTES - 100)])
        assert code is Code.INVALID_ARGUMENT
        assert f"a message has {MESSAGE_BYTES - 100} bytes; at most" in details


class TestFetch:
    def test_gives_the_file(self, service: Service, zoo: Zoo) -> None:
        (row,) = zoo.list()
        size, *parts, last = call(service, "Fetch", naming(row.id))
        content = b"".join(each.chunk for each in parts)
        with zoo.open(row.id) as file:
            assert content == file.read()
        assert size.size == len(content)
        assert last.sha256 == hashlib.sha256(content).hexdigest()

    def test_tells_nothing_of_a_model_that_is_not_for_this_user(
        self, service: Service, private: str
    ) -> None:
        missing = "0" * len(private)
        code, details = refused(service, "Fetch", naming(private), ANNA)
        assert code is Code.NOT_FOUND
        assert refused(service, "Fetch", naming(missing), ANNA) == (
            code,
            details.replace(private, missing),
        )
        assert call(service, "Fetch", naming(private), BOB)

    @pytest.mark.parametrize("name", ["Fetch", "Evict"])
    @pytest.mark.parametrize(
        "model",
        [
            "../x",
            "/etc/passwd",
            ".",
            "",
            "a/b",
            "a\\b",
            "*",
            "%2e",
            "s3://x",
            "$HOME",
            "x" * 10_000,
        ],
    )
    def test_takes_no_id_that_is_a_path(self, service: Service, name: str, model: str) -> None:
        code, details = refused(service, name, naming(model), ROOT)
        assert code is Code.NOT_FOUND
        assert "there is no model" in details
        assert details.isprintable()

    def test_ends_when_the_client_takes_nothing(self, service: Service, zoo: Zoo) -> None:
        """A client that stops in the middle of a large file does not keep a thread for ever."""
        big = zoo.add_model(make_model(300_000), Meta("big"))  # 8 MiB, more than is on its way
        with grpc.insecure_channel(service.address) as channel:
            method = channel.stream_stream(f"/{SERVICE}/Fetch")
            metadata = [("authorization", f"Bearer {ANNA}")]
            asked = zoo_pb2.FetchRequest(id=big).SerializeToString()
            fetched = method(iter([asked]), metadata=metadata, timeout=60)
            next(fetched)
            time.sleep(2 * TIMEOUT)
            with pytest.raises(grpc.RpcError) as caught:
                list(fetched)
            assert caught.value.code() is Code.CANCELLED


class TestRegister:
    def test_keeps_the_file_as_it_is(self, service: Service, zoo: Zoo, new: bytes) -> None:
        (answer,) = call(service, "Register", upload(new))
        added = answer.id
        assert listed(service)[added].meta == Meta("new", task="toy")
        with zoo.open(added) as file:
            assert file.read() == new

    def test_a_second_time_changes_nothing(self, service: Service, new: bytes) -> None:
        first, second = (call(service, "Register", upload(new)) for _ in range(2))
        assert first == second
        assert len(listed(service)) == 2

    @pytest.mark.parametrize(
        ("declared", "reason"),
        [
            ({"size": 0}, "the file has 0 bytes; 1 to 4194304 are allowed"),
            ({"size": None}, "the file has 0 bytes"),
            ({"size": LARGEST + 1}, "the file has 4194305 bytes"),
            ({"size": 2**64 - 1}, "bytes; 1 to 4194304 are allowed"),
            ({"size": 10}, "at byte 0 of 10 it must have 10"),
            ({"sha256": "0" * 64}, "sum of what arrived is"),
            ({"sha256": ""}, "sha256 is ''; it must have 64 hexadecimal digits"),
            ({"sha256": None}, "sha256 is ''; it must have"),
            ({"sha256": "../../x"}, "sha256 is '../../x'; it must have"),
            ({"sha256": "0" * 65}, "it must have 64 hexadecimal digits"),
        ],
    )
    def test_of_what_is_declared_wrongly_is_refused(
        self, service: Service, new: bytes, declared: dict[str, Any], reason: str
    ) -> None:
        code, details = refused(service, "Register", upload(new, **declared))
        assert code is Code.INVALID_ARGUMENT
        assert reason in details
        assert len(listed(service)) == 1

    def test_of_too_few_or_too_many_bytes_is_refused(self, service: Service, new: bytes) -> None:
        head, *parts = upload(new)
        content = bytes(2 * CHUNK_BYTES)
        wrong = {
            "the call ended before all messages came": [],
            "the file ends after 0 bytes": [head],
            "the first message must say what is uploaded": parts,
            "more came than": [head, *parts, part(b"x")],
            f"a chunk has {len(new) - 1} bytes": [head, part(new[:-1])],
            "a chunk has 0 bytes": [head, part(b""), *parts],
            "a chunk has 0 bytes; at": [head, head, *parts],
            "a message is not as zoo.proto has it": [head, b"x", *parts],
            f"ends after {CHUNK_BYTES} bytes": upload(content)[:2],
        }
        for reason, asked in wrong.items():
            code, details = refused(service, "Register", asked)
            assert code is Code.INVALID_ARGUMENT
            assert reason in details
        assert len(listed(service)) == 1

    def test_that_stands_still_is_ended(self, service: Service, new: bytes) -> None:
        head, *_ = upload(bytes(2 * CHUNK_BYTES))
        never = threading.Event()

        def stalling() -> Iterator[Message | bytes]:
            yield head
            yield part(bytes(CHUNK_BYTES))
            never.wait(30)

        start = time.monotonic()
        code, _ = refused(service, "Register", stalling())
        never.set()
        assert code is Code.CANCELLED
        assert TIMEOUT <= time.monotonic() - start < 5 * TIMEOUT

    def test_waits_for_a_place(self, service: Service, new: bytes) -> None:
        """There are three for uploads, two of them for one user; others go on to be answered."""
        upload_request = zoo_pb2.Upload(size=2 * CHUNK_BYTES, sha256="0" * 64)
        never = threading.Event()

        def stalling() -> Iterator[bytes]:
            yield zoo_pb2.RegisterRequest(upload=upload_request).SerializeToString()
            never.wait(30)

        with grpc.insecure_channel(service.address) as channel:
            method = channel.stream_stream(f"/{SERVICE}/Register")
            calls = []

            def stall(token: str) -> None:
                metadata = [("authorization", f"Bearer {token}")]
                calls.append(method(stalling(), metadata=metadata, timeout=30))
                wait_until(lambda: len(uploads()) == len(calls))

            stall(BOB)
            stall(BOB)
            code, details = refused(service, "Register", upload(new), BOB)
            assert code is Code.RESOURCE_EXHAUSTED
            assert "bob has 2 uploads going on" in details
            stall(ROOT)
            code, details = refused(service, "Register", upload(new), ANNA)
            assert code is Code.RESOURCE_EXHAUSTED
            assert "3 uploads are going on" in details
            assert listed(service)
            for each in calls:
                each.cancel()
            never.set()
        wait_until(lambda: not uploads())
        assert call(service, "Register", upload(new))

    def test_of_a_client_that_is_killed_leaves_nothing(self, patient_service: Service) -> None:
        service = patient_service
        program = f"""
            import grpc, sys, time
            from ooodist.zoo.service.zoo_pb2 import RegisterRequest, Upload
            from ooodist.zoo.service.rpc import caller
            def parts():
                yield RegisterRequest(upload=Upload(size={2 * CHUNK_BYTES}, sha256="0" * 64))
                yield RegisterRequest(chunk=bytes({CHUNK_BYTES}))
                time.sleep(60)
            register = caller(grpc.insecure_channel({service.address!r}), "Register")
            list(register(parts(), metadata=[("authorization", "Bearer {BOB}")]))
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
        try:
            wait_until(lambda: bool(uploads()), 30)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        wait_until(lambda: not uploads(), LONG_TIMEOUT / 2)
        assert len(listed(service)) == 1


class TestListAndEvict:
    def test_users_see_what_they_may_use_and_admins_all(
        self, service: Service, zoo: Zoo, private: str
    ) -> None:
        everything = {row.id for row in zoo.list()}
        assert set(listed(service, ANNA)) == everything - {private}
        assert set(listed(service, BOB)) == set(listed(service, ROOT)) == everything

    def test_only_admins_evict(self, service: Service, private: str) -> None:
        for token in (ANNA, BOB):
            code, details = refused(service, "Evict", naming(private), token)
            assert code is Code.PERMISSION_DENIED
            assert f"{TOKENS[token]} may not evict models" in details
        assert call(service, "Evict", naming(private), ROOT) == [zoo_pb2.EvictResponse()]
        assert private not in listed(service)
        assert refused(service, "Evict", naming(private), ROOT)[0] is Code.NOT_FOUND
