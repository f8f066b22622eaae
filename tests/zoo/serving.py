"""Small models, users, and plain gRPC calls for tests of the zoo's service and its clients."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import keras
import pytest

from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.zoo import entry
from ooodist.zoo.entry import Meta
from ooodist.zoo.service import messages
from ooodist.zoo.service.messages import SERVICE
from ooodist.zoo.service.server import Service
from ooodist.zoo.zoo import Row

CALLS = ("Query", "Fetch", "Register", "List", "Evict")
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
    service: Service | str, name: str, asked: Iterable[bytes], token: str | None = ANNA
) -> list[bytes]:
    """What the service answers to these messages."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    address = service if isinstance(service, str) else service.address
    with grpc.insecure_channel(address) as channel:
        method = channel.stream_stream(f"/{SERVICE}/{name}")
        return list(method(iter(asked), metadata=metadata, timeout=30))


def refused(
    service: Service | str, name: str, asked: Iterable[bytes], token: str | None = ANNA
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
    rows = [messages.read(Row, each) for each in call(service, "List", [b"{}"], token)]
    return {row.id: row for row in rows}


def naming(model: str) -> list[bytes]:
    """The message that names a model."""
    return [messages.encode(messages.Model(model))]


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "It did not happen in time."
        time.sleep(0.02)


def upload(content: bytes, **declared: object) -> list[bytes]:
    """The messages that register a file, with other things declared."""
    right = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return [
        json.dumps(right | declared).encode(),
        *messages.chunks(io.BytesIO(content), len(content)),
    ]


def uploads() -> list[str]:
    """Files that services of this process are receiving: open, but in no folder."""
    unnamed = re.compile(rf"{re.escape(tempfile.gettempdir())}/#\d+ \(deleted\)")
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, or that of the folder
            found.append(str(descriptor.readlink()))
    return [name for name in found if unnamed.fullmatch(name)]
