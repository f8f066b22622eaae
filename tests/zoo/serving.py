"""Small models, users, and plain gRPC calls for tests of the zoo's service and its clients."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import keras
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.zoo import entry
from ooodist.zoo.entry import Meta
from ooodist.zoo.service import messages, zoo_pb2
from ooodist.zoo.service.messages import SERVICE
from ooodist.zoo.service.server import Service
from ooodist.zoo.zoo import Row

METHODS = zoo_pb2.DESCRIPTOR.services_by_name["Zoo"].methods_by_name
CALLS = tuple(METHODS)
NOTHING = [b""]  # what a message without any field is on the wire
ANNA, BOB, ROOT = "anna's-token-0123", "bob's-token-01234", "root's-token-0123"
TOKENS = {ANNA: "anna", BOB: "bob", ROOT: "root"}


def make_model(units: int = 8) -> keras.Model:
    """A small one, or as large as is said."""
    keras.utils.set_random_seed(units)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,), name="input"),
            layers.Dense(units, activation="relu", name="hidden"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(2, name="output"),
        ],
        name="small",
    )


def make_file(file: Path, meta: Meta, units: int = 8) -> Path:
    """A file of a small model, as a client sends it."""
    model = make_model(units)
    entry.write(file, model, meta, graph_of(model))
    return file


def call(
    service: Service | str,
    name: str,
    asked: Iterable[Message | bytes],
    token: str | None = ANNA,
) -> list[Any]:
    """What the service answers to these messages, or to these bytes in the place of messages."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    address = service if isinstance(service, str) else service.address

    def sent() -> Iterator[bytes]:
        for each in asked:
            yield each if isinstance(each, bytes) else each.SerializeToString()

    with grpc.insecure_channel(address) as channel:
        method = channel.stream_stream(f"/{SERVICE}/{name}")
        answers = list(method(sent(), metadata=metadata, timeout=30))
    return [GetMessageClass(METHODS[name].output_type).FromString(each) for each in answers]


def refused(
    service: Service | str,
    name: str,
    asked: Iterable[Message | bytes],
    token: str | None = ANNA,
) -> tuple[grpc.StatusCode, str]:
    """The status and the reason of a call, which says nothing of the server's inside."""
    with pytest.raises(grpc.RpcError) as caught:
        call(service, name, asked, token)
    details = caught.value.details()
    assert tempfile.gettempdir() not in details
    assert "Traceback" not in details
    return caught.value.code(), details


def listed(service: Service | str, token: str = ROOT) -> dict[str, Row]:
    """The models that a user sees, by id."""
    rows = [messages.row_of(each) for each in call(service, "List", NOTHING, token)]
    return {row.id: row for row in rows}


def naming(model: str) -> list[Message | bytes]:
    """The message that names a model; that of Evict is the same on the wire."""
    return [zoo_pb2.FetchRequest(id=model)]


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "It did not happen in time."
        time.sleep(0.02)


def upload(content: bytes, **declared: Any) -> list[Message | bytes]:
    """The messages that register a file, with other things declared."""
    right = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return [
        zoo_pb2.RegisterRequest(upload=zoo_pb2.Upload(**(right | declared))),
        *map(part, messages.chunks(io.BytesIO(content), len(content))),
    ]


def part(chunk: bytes) -> zoo_pb2.RegisterRequest:
    """The message with a chunk of a file."""
    return zoo_pb2.RegisterRequest(chunk=chunk)


def uploads() -> list[str]:
    """Files that services of this process are receiving: open, but in no folder."""
    unnamed = re.compile(rf"{re.escape(tempfile.gettempdir())}/#\d+ \(deleted\)")
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, or that of the folder
            found.append(str(descriptor.readlink()))
    return [name for name in found if unnamed.fullmatch(name)]
