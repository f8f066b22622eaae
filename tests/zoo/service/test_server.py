"""Where a zoo is served, with which tokens and certificates, and how that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme

from ooodist.errors import UserError
from ooodist.zoo.service import zoo_pb2
from ooodist.zoo.service.limits import CHUNK_BYTES, Limits
from ooodist.zoo.service.rpc import caller
from ooodist.zoo.service.server import serve
from ooodist.zoo.zoo import Zoo
from tests.zoo.serving import ANNA, BOB, NOTHING, TOKENS, listed, part, refused, wait_until


class TestServe:
    @pytest.mark.parametrize(
        "address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:7077", "example.org:7077"]
    )
    def test_other_machines_are_served_with_tls_only(self, zoo: Zoo, address: str) -> None:
        with pytest.raises(UserError, match="give a certificate and its key, or listen on 127"):
            serve(zoo, address, tokens=TOKENS)

    @pytest.mark.parametrize("address", ["", "7077", ":7077", "localhost", "localhost:99999"])
    def test_the_address_must_be_one(self, zoo: Zoo, address: str) -> None:
        with pytest.raises(UserError, match="it must be host:port"):
            serve(zoo, address, tokens=TOKENS)

    def test_a_port_is_not_shared(self, zoo: Zoo) -> None:
        with (
            serve(zoo, "127.0.0.1:0", tokens=TOKENS) as service,
            pytest.raises(UserError, match=f"cannot be served at {service.address}: the port is"),
        ):
            serve(zoo, service.address, tokens=TOKENS)

    @pytest.mark.parametrize(
        ("tokens", "reason"),
        [
            ({}, "there is no token"),
            ({"short": "anna"}, "the token of anna is too short"),
            ({"has a blank in it, alas": "anna"}, "the token of anna is too short or has other"),
            ({ANNA: ""}, "one without a user"),
        ],
    )
    def test_tokens_must_be_good(self, zoo: Zoo, tokens: dict[str, str], reason: str) -> None:
        with pytest.raises(UserError, match=reason):
            serve(zoo, "127.0.0.1:0", tokens=tokens)

    def test_a_certificate_needs_its_key(self, zoo: Zoo, tmp_path: Path) -> None:
        one, other = (trustme.CA().issue_cert("localhost") for _ in range(2))
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        one.cert_chain_pems[0].write_to_path(certificate)
        other.private_key_pem.write_to_path(key)
        for wrong in (key, certificate, tmp_path / "missing.pem"):
            with pytest.raises(UserError, match="cannot be used"):
                serve(zoo, "0.0.0.0:0", tokens=TOKENS, certificate=certificate, key=wrong)
        with pytest.raises(UserError, match="TLS needs both"):
            serve(zoo, "127.0.0.1:0", tokens=TOKENS, certificate=certificate)
        one.private_key_pem.write_to_path(key)
        key.chmod(0o644)
        with pytest.raises(UserError, match=rf"key {key} can be read .*644\); .* chmod 600 {key}"):
            serve(zoo, "127.0.0.1:0", tokens=TOKENS, certificate=certificate, key=key)

    def test_connections_without_a_call_are_closed(self, zoo: Zoo) -> None:
        """They need no token, and each takes a file of which a process may have few."""
        with serve(zoo, "127.0.0.1:0", tokens=TOKENS, limits=Limits(idle=0.5)) as service:
            host, port = service.address.split(":")
            with socket.create_connection((host, int(port)), 20) as silent:
                while silent.recv(4096):  # the settings that a server sends first
                    pass
            with socket.create_connection((host, int(port)), 20) as idle:
                idle.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
                )
                while idle.recv(4096):
                    pass
            assert listed(service) == {}

    def test_nothing_is_left_when_it_ends(
        self, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        before = set(tmp_path.iterdir())
        threads = threading.active_count()
        for _ in range(3):
            with serve(zoo, "127.0.0.1:0", tokens=TOKENS) as service:
                assert listed(service) == {}
        assert set(tmp_path.iterdir()) == before
        wait_until(lambda: threading.active_count() <= threads)


PROGRAM = """
import sys
from pathlib import Path
from ooodist.zoo.service.server import serve_forever
from ooodist.zoo.zoo import Zoo

tokens = Path(sys.argv[2]) if len(sys.argv) > 2 else None
serve_forever(Zoo(sys.argv[1]), "127.0.0.1:0", tokens)
"""


class TestServeForever:
    def start(self, *arguments: object) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
        environment = os.environ | {"USER": "someone", "LOGNAME": "someone"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        return process, process.stdout.readline()

    def end(self, process: subprocess.Popen[str], number: signal.Signals) -> str:
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stdout is not None
        with process.stdout:
            return process.stdout.read()

    def test_says_where_and_ends_at_a_signal(self, tmp_path: Path) -> None:
        Zoo(str(tmp_path / "zoo")).close()
        file = tmp_path / "tokens.yaml"
        file.write_text(f"anna: {ANNA}\n")
        file.chmod(0o600)
        process, line = self.start(tmp_path / "zoo", file)
        assert f"zoo {tmp_path / 'zoo'} with 0 models is served at 127.0.0.1:" in line
        assert "without TLS" in line
        address = line.split("served at ")[1].split(",")[0]
        assert listed(address, ANNA) == {}
        assert refused(address, "List", NOTHING, BOB)[0] is grpc.StatusCode.UNAUTHENTICATED
        out = self.end(process, signal.SIGTERM)
        assert ANNA not in line + out
        assert "no longer served" in out

    def test_leaves_no_upload_behind_when_it_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "temporary").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
        process, line = self.start(tmp_path / "zoo")
        assert process.stdout is not None
        token = process.stdout.readline().removeprefix("token for this run: ").strip()
        address = line.split("served at ")[1].split(",")[0]
        ended = threading.Event()

        def is_receiving() -> bool:
            for each in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                    if os.readlink(each).startswith(str(tmp_path / "temporary")):
                        return each.stat().st_size >= CHUNK_BYTES
            return False

        def parts() -> Iterator[zoo_pb2.RegisterRequest]:
            upload = zoo_pb2.Upload(size=2 * CHUNK_BYTES, sha256="0" * 64)
            yield zoo_pb2.RegisterRequest(upload=upload)
            yield part(bytes(CHUNK_BYTES))
            ended.wait(30)

        with grpc.insecure_channel(address) as channel:
            metadata = [("authorization", f"Bearer {token}")]
            going = caller(channel, "Register")(parts(), metadata=metadata, timeout=30)
            wait_until(is_receiving)
            process.kill()
            process.communicate()
            ended.set()
            assert going.code() is not grpc.StatusCode.OK
        assert list((tmp_path / "temporary").iterdir()) == []

    def test_makes_a_token_where_there_is_none(self, tmp_path: Path) -> None:
        process, line = self.start(tmp_path / "zoo")
        assert process.stdout is not None
        token = process.stdout.readline().removeprefix("token for this run: ").strip()
        assert len(token) > 40
        address = line.split("served at ")[1].split(",")[0]
        assert listed(address, token) == {}
        out = self.end(process, signal.SIGINT)
        assert "OOODIST_ZOO_TOKEN" in out
        assert token not in out
