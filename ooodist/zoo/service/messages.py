"""Builds and parses the messages of zoo.proto, for the service and its clients.

Nothing received is trusted. Protobuf makes sure that a message has the right fields of the right
types; this module checks that the values make sense before they are used. Files travel in chunks of
1 MiB; the last may be shorter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol, TypeVar

from google.protobuf.message import DecodeError

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline
from ooodist.zoo.entry import Meta, check_meta
from ooodist.zoo.reading import outline_json
from ooodist.zoo.reading.bounded_json import MOST_TEXT
from ooodist.zoo.service import zoo_pb2
from ooodist.zoo.service.limits import CHUNK_BYTES, request_bytes
from ooodist.zoo.zoo import Found, Row, Wanted

T = TypeVar("T")

SERVICE: str = zoo_pb2.DESCRIPTOR.services_by_name["Zoo"].full_name

MOST_FOUND = 100  # models per query
MOST_SECONDS = 2.0**37  # since 1970: the year 6325

_SHA256 = re.compile("[0-9a-f]{64}")


class Part(Protocol):
    """A message that may hold a chunk of a file: FetchResponse or RegisterRequest."""

    @property
    def chunk(self) -> bytes:
        """The chunk; empty if the message holds something else."""


def made(kind: Callable[..., T], **fields: Any) -> T:
    """A message of this kind.

    Raises:
        UserError: a field cannot hold its value.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:  # too large a number, or a lone surrogate
        raise UserError(f"{repr(fields)[:80]} cannot be sent: {error}") from error


def parsed(parse: Callable[[bytes], T], message: bytes, most: int) -> T:
    """Parses a message.

    Args:
        parse: converts bytes to a message.
        message: bytes received.
        most: most bytes that it may have.

    Raises:
        UserError: it is too long or malformed.
    """
    if len(message) > most:
        raise UserError(f"a message has {len(message)} bytes; at most {most} are allowed")
    try:
        return parse(message)
    except DecodeError as error:
        raise UserError(
            f"a message is not as zoo.proto has it ({error!s:.200}); the service and its clients "
            "must have the same version of ooodist"
        ) from error


def query_request(outline: Outline, wanted: Wanted, count: int) -> zoo_pb2.QueryRequest:
    """A request for the ``count`` best models that are wanted for an outline.

    Raises:
        UserError: the service would reject it.
    """
    outline_json.check_size(len(outline))
    operators = [
        made(
            zoo_pb2.Operator,
            op=each.op,
            inputs=each.inputs,
            shapes=[made(zoo_pb2.Shape, sizes=shape) for shape in each.shapes],
        )
        for each in outline
    ]
    request = made(
        zoo_pb2.QueryRequest,
        task=wanted.task,
        dataset=wanted.dataset,
        tags=wanted.tags,
        count=count,
        outline=operators,
    )
    size, most = request.ByteSize(), request_bytes("Query")
    if size > most:
        raise UserError(
            f"a message of {size} bytes is too long to be sent; at most {most} are allowed"
        )
    return request


def query_of(request: zoo_pb2.QueryRequest, user: str) -> tuple[Outline, Wanted, int]:
    """The arguments of :func:`query_request`, with the user who asks filled in.

    Raises:
        UserError: the request is invalid; the message names the fault.
    """
    if not 1 <= request.count <= MOST_FOUND:
        raise UserError(f"count is {request.count}; it must be 1 to {MOST_FOUND}")
    outline_json.check_size(len(request.outline))
    outline = outline_json.read_outline(
        [[each.op, list(each.inputs), _shapes(each)] for each in request.outline]
    )
    wanted = Wanted(request.task, request.dataset, tuple(request.tags), user)
    return outline, wanted, request.count


def query_response(found: Found) -> zoo_pb2.QueryResponse:
    """The message for a model that was found."""
    return made(zoo_pb2.QueryResponse, id=found.id, score=found.score, meta=_meta(found.meta))


def found_of(response: zoo_pb2.QueryResponse) -> Found:
    """The argument of :func:`query_response`. Raises UserError if it is invalid."""
    if not 0 < response.score <= 1 + 1e-6:  # also catches NaN; rounding may add a little
        raise UserError(f"a message has a score of {response.score}; it must be above 0, at most 1")
    return Found(checked_id(response.id), response.score, _meta_of(response.meta))


def list_response(row: Row) -> zoo_pb2.ListResponse:
    """The message for a model in the list."""
    fields = vars(row) | {"meta": _meta(row.meta)}
    return made(zoo_pb2.ListResponse, size=fields.pop("bytes"), **fields)


def row_of(response: zoo_pb2.ListResponse) -> Row:
    """The argument of :func:`list_response`. Raises UserError if it is invalid."""
    for seconds in (response.created, response.last_used):
        if not abs(seconds) <= MOST_SECONDS:  # also catches NaN
            raise UserError(f"a message has a time of {seconds} s, at which there was no zoo")
    same = ("parameters", "created", "uses", "value", "last_used")
    return Row(
        checked_id(response.id),
        _meta_of(response.meta),
        response.size,
        **{name: getattr(response, name) for name in same},
    )


def checked_id(text: str) -> str:
    """The id unchanged. Raises UserError if it cannot be the id of a model."""
    if not (1 <= len(text) <= MOST_TEXT and text.isprintable()):
        raise UserError(f"a message has {text[:80]!r} as the id of a model, which none has")
    return text


def check_sha256(text: str) -> None:
    """Raises UserError unless the text is a SHA-256 digest in hexadecimal."""
    if not _SHA256.fullmatch(text):
        raise UserError(f"sha256 is {text[:80]!r}; it must have 64 hexadecimal digits")


def chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yields the next ``size`` bytes of a file in chunks as they are sent.

    Raises:
        UserError: the file has fewer bytes left.
    """
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        chunk = file.read(length)
        if len(chunk) < length:
            raise UserError(f"the file has only {start + len(chunk)} bytes instead of {size}")
        yield chunk


def receive(
    messages: Iterator[Part],
    size: int,
    file: IO[bytes],
    moved: Callable[[], None] | None = None,
) -> str:
    """Writes a file from its chunks; later messages stay in ``messages``.

    Args:
        messages: messages that hold the chunks.
        size: declared size of the file in bytes, already checked.
        file: file to write to.
        moved: called after each chunk, if given.

    Returns:
        The SHA-256 digest of the bytes written, in hexadecimal.

    Raises:
        UserError: a chunk is missing or has the wrong size.
    """
    written = hashlib.sha256()
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        message = next(messages, None)
        if message is None:
            raise UserError(f"the file ends after {start} bytes instead of {size}")
        chunk = message.chunk
        if len(chunk) != length:
            raise UserError(
                f"a chunk has {len(chunk)} bytes; at byte {start} of {size} it must have {length}"
            )
        file.write(chunk)
        written.update(chunk)
        if moved is not None:
            moved()
    return written.hexdigest()


def _shapes(operator: zoo_pb2.Operator) -> list[list[int]]:
    """The shapes of an operator, cut off just above the limits that refuse them."""
    some = operator.shapes[: outline_json.MOST_WEIGHTS + 1]
    return [list(shape.sizes[: outline_json.MOST_AXES + 1]) for shape in some]


def _meta(meta: Meta) -> zoo_pb2.Meta:
    return made(zoo_pb2.Meta, **vars(meta))


def _meta_of(message: zoo_pb2.Meta) -> Meta:
    meta = Meta(
        name=message.name,
        task=message.task,
        dataset=message.dataset,
        tags=tuple(message.tags),
        access=tuple(message.access),
        metrics=dict(message.metrics),
        parent=message.parent if message.HasField("parent") else None,
        judged_by=message.judged_by,
    )
    try:
        check_meta(meta)
    except UserError as error:
        raise UserError(f"a message has meta data that no model has: {error}") from error
    return meta
