"""The health check, by the bytes that gRPC's standard gives it, and as a unary call."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ooodist.zoo.service.limits import Limits
from ooodist.zoo.service.messages import SERVICE
from ooodist.zoo.service.server import Service, serve
from ooodist.zoo.zoo import Zoo
from tests.zoo.serving import TOKENS, listed, wait_until

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
LIMITS = Limits(calls=8, calls_of_user=2, timeout=60)
Code = grpc.StatusCode


@pytest.fixture
def service(zoo: Zoo) -> Iterator[Service]:
    with serve(zoo, "127.0.0.1:0", tokens=TOKENS, limits=LIMITS) as service:
        yield service


def check(service: Service, request: bytes = b"", method: str = "Check") -> bytes:
    """The answer to a request without a token."""
    with grpc.insecure_channel(service.address) as channel:
        call = channel.unary_unary(f"/grpc.health.v1.Health/{method}")
        answer: bytes = call(request, timeout=30)
    return answer


def code(service: Service, request: bytes = b"", method: str = "Check") -> object:
    try:
        check(service, request, method)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


def test_a_service_that_runs_is_serving(service: Service) -> None:
    assert check(service) == SERVING
    assert check(service, bytes([0x0A, len(SERVICE)]) + SERVICE.encode()) == SERVING


def test_nothing_else_is_answered(service: Service) -> None:
    assert code(service, b"\x0a\x05other") is Code.NOT_FOUND
    assert code(service, b"\xff\xff") is Code.INVALID_ARGUMENT
    assert code(service, b"\x0a" + b"\x80\x80\x08" + b"x" * 2**17) is Code.INVALID_ARGUMENT
    assert code(service, method="Watch") is Code.UNIMPLEMENTED
    assert check(service) == SERVING


def test_a_zoo_that_was_deleted_is_not_served(service: Service, zoo: Zoo) -> None:
    shutil.rmtree(Path(zoo.address))
    assert check(service) == NOT_SERVING


def test_those_who_say_nothing_take_no_place_of_users(service: Service) -> None:
    def silent() -> Iterator[bytes]:
        time.sleep(60)
        yield b""

    with grpc.insecure_channel(service.address) as channel:
        method = channel.stream_stream("/grpc.health.v1.Health/Check")
        calls = [method(silent(), timeout=60) for _ in range(LIMITS.calls_of_user)]

        def have_all_places() -> bool:
            for number, call in enumerate(calls):
                if call.done():  # it was refused, as the check below had the place
                    calls[number] = method(silent(), timeout=60)
            return code(service) is Code.RESOURCE_EXHAUSTED

        wait_until(have_all_places)
        assert listed(service) == {}
        for call in calls:
            call.cancel()
