"""Services that are not there, or answer what they like: the client says so, and in time."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Operator
from ooodist.zoo.entry import Meta
from ooodist.zoo.service.client import ZooClient, ZooUnavailable
from ooodist.zoo.service.limits import CHUNK_BYTES
from ooodist.zoo.service.messages import SERVICE, chunks
from ooodist.zoo.service.zoo_pb2 import (
    FetchResponse,
    ListResponse,
    QueryResponse,
    RegisterResponse,
)
from ooodist.zoo.service.zoo_pb2 import (
    Meta as MetaMessage,
)
from ooodist.zoo.zoo import Wanted
from tests.zoo.serving import ANNA, CALLS, make_model


class TestUnavailable:
    """The client says so in time: seconds, not minutes."""

    TIMEOUT = 1.0

    def ask(self, address: str) -> str:
        texts = []
        with ZooClient(address, token=ANNA, timeout=self.TIMEOUT) as zoo:
            for call in (
                zoo.list,
                lambda: zoo.fetch("0"),
                lambda: zoo.register(make_model(), Meta()),
                lambda: zoo.find((Operator("Dense"),), Wanted()),
            ):
                start = time.monotonic()
                with pytest.raises(ZooUnavailable) as caught:
                    call()
                assert time.monotonic() - start < 5 * self.TIMEOUT
                texts.append(str(caught.value))
        return "\n".join(texts)

    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert self.ask(address).count(f"the zoo at {address} cannot be reached") == 4

    def test_it_accepts_and_says_nothing(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            text = self.ask(f"127.0.0.1:{listener.getsockname()[1]}")
        assert text.count("did not go on for 1 s; check that the service runs") == 4

    def test_something_else_listens(self) -> None:
        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.close()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=answer, daemon=True).start()
            assert "the zoo at" in self.ask(f"127.0.0.1:{listener.getsockname()[1]}")

    def test_its_machine_stops_in_the_middle(self, tmp_path: Path) -> None:
        """A stopped process is like a machine without power: the connection stays, silent."""
        program = (
            "import sys, time; from ooodist.zoo.service.server import serve; "
            "from ooodist.zoo.zoo import Zoo; "
            f"service = serve(Zoo(sys.argv[1]), '127.0.0.1:0', tokens={{{ANNA!r}: 'anna'}}); "
            "print(service.address, flush=True); time.sleep(60)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "zoo")],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},  # it has no time to tidy up
        )
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            with ZooClient(address, token=ANNA, timeout=self.TIMEOUT) as zoo:
                assert zoo.list() == []
                os.kill(process.pid, signal.SIGSTOP)
                start = time.monotonic()
                with pytest.raises(ZooUnavailable, match="did not go on for 1 s"):
                    zoo.list()
                assert time.monotonic() - start < 5 * self.TIMEOUT
                os.kill(process.pid, signal.SIGCONT)
                assert zoo.list() == []
                process.kill()
                process.wait()
                with pytest.raises(ZooUnavailable, match=f"the zoo at {address}"):
                    zoo.list()
        finally:
            process.kill()
            process.wait()


CONTENT = bytes(CHUNK_BYTES + 5)
PARTS = [CONTENT[:CHUNK_BYTES], CONTENT[CHUNK_BYTES:]]
RIGHT = [
    FetchResponse(size=len(CONTENT)),
    *(FetchResponse(chunk=each) for each in PARTS),
    FetchResponse(sha256=hashlib.sha256(CONTENT).hexdigest()),
]
UNREADABLE = "a message is not as zoo.proto has it .* must have the same version of ooodist"


class TestHostileServices:
    """A gRPC server that answers what it likes."""

    @contextlib.contextmanager
    def answering(
        self,
        answers: Sequence[Message | bytes],
        stall: bool = False,
        details: str = "",
        service: str = SERVICE,
    ) -> Iterator[ZooClient]:
        ended = threading.Event()

        def answer(_: object, context: grpc.ServicerContext) -> Iterator[bytes]:
            for each in answers:
                yield each if isinstance(each, bytes) else each.SerializeToString()
            if stall:
                ended.wait(30)
            if details:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)

        server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.stream_stream_rpc_method_handler(answer)
        calls = dict.fromkeys(CALLS, handler)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, calls),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with ZooClient(f"127.0.0.1:{port}", token=ANNA, timeout=1.0) as zoo:
                yield zoo
        finally:
            ended.set()
            server.stop(0).wait()

    @pytest.mark.parametrize(
        ("answers", "reason"),
        [
            ([], "ended its answer early"),
            ([b"x"], UNREADABLE),
            ([b'{"bytes": 10}'], UNREADABLE),
            ([b""], "has 0 bytes, which is no size"),
            ([FetchResponse(size=0)], "has 0 bytes, which is no size"),
            ([FetchResponse(size=2**64 - 1)], "has 18446744073709551615 bytes, which is no size"),
            ([FetchResponse(size=99999999999999)], "has 99999999999999 bytes, which is no size"),
            (RIGHT[1:], "has 0 bytes, which is no size"),
            ([RIGHT[0], RIGHT[0]], "a chunk has 0 bytes"),
            (RIGHT[:1], "the file ends after 0 bytes"),
            (RIGHT[:2], "the file ends after 1048576 bytes"),
            ([RIGHT[0], FetchResponse(chunk=CONTENT), RIGHT[3]], "a chunk has 1048581 bytes"),
            (RIGHT[:3], "ended its answer early"),
            ([*RIGHT[:3], FetchResponse(sha256="0")], "was damaged on its way"),
            ([*RIGHT[:3], b""], "was damaged on its way"),
            (RIGHT, r"^model file 0 of the zoo at .* File is not a zip file"),
        ],
    )
    def test_what_is_no_model_is_not_taken(
        self, answers: list[Message | bytes], reason: str
    ) -> None:
        with self.answering(answers) as zoo, pytest.raises(UserError, match=reason):
            zoo.fetch("0")

    def test_wrong_answers_to_the_other_calls(self, caplog: pytest.LogCaptureFixture) -> None:
        for answer in (b"x", b"{}", b"[" * 1000, b'{"id": 1}', b"\x0a\x02\xff\xfe"):
            with self.answering([answer]) as zoo:
                for call in (
                    zoo.list,
                    lambda zoo=zoo: zoo.register(make_model(), Meta()),
                    lambda zoo=zoo: zoo.find((Operator("Dense"),), Wanted()),
                ):
                    with pytest.raises(UserError, match=UNREADABLE):
                        call()
        assert "Traceback" not in caplog.text

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (ListResponse(), "has '' as the id of a model"),
            (ListResponse(id="\x1b[2J"), "as the id of a model"),
            (ListResponse(id="x" * 1001), "as the id of a model"),
            (ListResponse(id="a", created=math.nan), "a time of nan s"),
            (ListResponse(id="a", created=1e300), "a time of 1e[+]300 s"),
            (ListResponse(id="a", last_used=-math.inf), "a time of -inf s"),
            (ListResponse(id="a", meta=MetaMessage(metrics={"accuracy": 75})), "accuracy is 75"),
            (
                ListResponse(id="a", meta=MetaMessage(metrics={"accuracy": math.nan})),
                "accuracy is nan",
            ),
            (ListResponse(id="a", meta=MetaMessage(task="\x1b[2J")), "task is .* can be printed"),
            (ListResponse(id="a", meta=MetaMessage(tags=["a"] * 101)), "tags has 101 texts"),
        ],
    )
    def test_a_list_that_makes_no_sense(self, answer: ListResponse, reason: str) -> None:
        with self.answering([answer]) as zoo, pytest.raises(UserError, match=reason):
            zoo.list()

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (QueryResponse(id="a"), "has a score of 0.0"),
            (QueryResponse(id="a", score=math.nan), "has a score of nan"),
            (QueryResponse(id="a", score=1.1), "has a score of 1.1"),
            (QueryResponse(score=0.5), "has '' as the id of a model"),
            (QueryResponse(id="a", score=0.5, meta=MetaMessage(name="\n")), "name is"),
        ],
    )
    def test_a_find_that_makes_no_sense(self, answer: QueryResponse, reason: str) -> None:
        with self.answering([answer]) as zoo, pytest.raises(UserError, match=reason):
            zoo.find((Operator("Dense"),), Wanted())

    def test_an_id_that_makes_no_sense(self) -> None:
        for model in ("", "a\nb"):
            with (
                self.answering([RegisterResponse(id=model)]) as zoo,
                pytest.raises(UserError, match="as the id of a model, which none has"),
            ):
                zoo.register(make_model(), Meta())

    def test_one_of_before_protobuf(self) -> None:
        """Its service had another name."""
        with (
            self.answering([], service="ooodist.Zoo") as zoo,
            pytest.raises(UserError, match=r"is no zoo of this ooodist .* the same version"),
        ):
            zoo.list()

    def test_one_that_stops_in_the_middle_of_a_file(self) -> None:
        with self.answering(RIGHT[:2], stall=True) as zoo:
            start = time.monotonic()
            with pytest.raises(ZooUnavailable, match="did not go on for 1 s"):
                zoo.fetch("0")
            assert 1 <= time.monotonic() - start < 5

    def test_what_it_says_cannot_steer_the_terminal(self) -> None:
        with (
            self.answering([], details="\x1b[2Jall is well\r\n") as zoo,
            pytest.raises(UserError, match="all is well") as caught,
        ):
            zoo.list()
        assert str(caught.value).isprintable()

    def test_chunks_that_are_right_are_put_together(self, tmp_path: Path) -> None:
        """So what is refused above is refused for its reason."""
        with (tmp_path / "file").open("wb+") as file:
            file.write(CONTENT)
            file.seek(0)
            assert list(chunks(file, len(CONTENT))) == PARTS
