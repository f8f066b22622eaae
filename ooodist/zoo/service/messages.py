"""What the zoo's service and its clients say to each other.

A call is a stream of messages in each direction. A message is a JSON object, or one chunk of a
``.keras`` file::

    call      the client sends                  the service answers
    Query     {wanted, count}, {outline}        {id, score, meta} for each model found
    Fetch     {id}                              {bytes}, chunks, {sha256}
    Register  {bytes, sha256}, chunks           {id}
    List      {}                                one object for each model
    Evict     {id}                              {}

Each chunk has 1 MiB, but for the last. Nothing that arrives is trusted: its size is known before it
is read, and objects are read field by field. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn, TypeVar

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline, plain_of
from ooodist.util import yaml_dataclass
from ooodist.util.yaml_dataclass import Range
from ooodist.zoo import outline_json
from ooodist.zoo.zoo import Wanted

T = TypeVar("T")

SERVICE = "ooodist.Zoo"

CHUNK_BYTES = 2**20
MESSAGE_BYTES = 4 * 2**20  # the most that gRPC takes in at all
OBJECT_BYTES = 2**16  # of a JSON object
ANSWER_BYTES = 2**20  # of one with meta data, which may have many texts
OUTLINE_BYTES = 3 * 2**20
MOST_NESTED = 8  # lists and objects within each other
MOST_FOUND = 100  # models that may be asked for at once
LARGEST_BYTES = 2 * 2**30  # of a file, unless the user says otherwise


@dataclass(frozen=True)
class Query:
    """Asks for the ``count`` best models, of those wanted, for the outline that follows."""

    wanted: Wanted
    count: Annotated[int, Range(1, MOST_FOUND)] = 1


@dataclass(frozen=True)
class Model:
    """Names a model."""

    id: str


@dataclass(frozen=True)
class Upload:
    """Begins a file that is to be registered: its size, and its sum in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Size:
    """Begins a file that was asked for."""

    bytes: int


@dataclass(frozen=True)
class Sum:
    """Ends it: the sum, in hexadecimal digits."""

    sha256: str


def encode(value: Any, most: int = OBJECT_BYTES) -> bytes:
    """A message of a dataclass or a plain value.

    Raises:
        UserError: it would be longer than ``most`` bytes.
    """
    try:
        plain = yaml_dataclass.plain(value)
        text = json.dumps(plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        message = text.encode()
    except ValueError as error:
        raise UserError(f"{_shown(value)} cannot be sent: {error}") from error
    if len(message) > most:
        raise UserError(
            f"a message of {len(message)} bytes is too long to be sent; at most {most} are allowed"
        )
    return message


def decode(message: bytes, most: int = OBJECT_BYTES) -> Any:
    """The plain value of a message, nested no deeper than ``MOST_NESTED`` and without NaN.

    Raises:
        UserError: it is longer than ``most`` bytes, or no such value.
    """
    if len(message) > most:
        raise UserError(f"a message has {len(message)} bytes; at most {most} are allowed")
    try:
        text = message.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise UserError("a message is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"a message is not valid JSON: {error!s:.200}") from error
    level = [value]
    for _ in range(MOST_NESTED + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
        if any(isinstance(each, str) and not _is_text(each) for each in level):
            raise UserError("a message has a text that is not valid Unicode")
    raise UserError(f"a message is nested deeper than the {MOST_NESTED} levels allowed")


def read(hint: type[T], message: bytes, most: int = OBJECT_BYTES) -> T:
    """A dataclass from a message that :func:`encode` made of one.

    Raises:
        UserError: names what is wrong.
    """
    value = decode(message, most)
    try:
        found: T = yaml_dataclass.read(hint, value)
    except UserError as error:
        raise UserError(f"a message is not as it should be: {error}") from error
    return found


def encode_outline(outline: Outline) -> bytes:
    """A message of an outline.

    Raises:
        UserError: the service would not take it.
    """
    outline_json.check_size(len(outline))
    return encode(plain_of(outline), OUTLINE_BYTES)


def read_outline(message: bytes) -> Outline:
    """The outline in a message of :func:`encode_outline`.

    Raises:
        UserError: names the operator in which something is wrong.
    """
    return outline_json.read_outline(decode(message, OUTLINE_BYTES))


def chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The next ``size`` bytes of a file, as messages.

    Raises:
        UserError: the file has fewer.
    """
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        chunk = file.read(length)
        if len(chunk) < length:
            raise UserError(f"the file has only {start + len(chunk)} bytes instead of {size}")
        yield chunk


def receive(
    messages: Iterator[bytes], size: int, file: IO[bytes], moved: Callable[[], None] | None = None
) -> str:
    """Writes a file from its chunks, and leaves what follows them in ``messages``.

    Args:
        messages: from which the chunks are taken.
        size: bytes of the whole file, as declared and found acceptable.
        file: to write into.
        moved: if given, is called after each chunk.

    Returns:
        The SHA-256 sum of what was written, in hexadecimal digits.

    Raises:
        UserError: a chunk is missing, or has another size than it should.
    """
    written = hashlib.sha256()
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        chunk = next(messages, None)
        if chunk is None:
            raise UserError(f"the file ends after {start} bytes instead of {size}")
        if len(chunk) != length:
            raise UserError(
                f"a chunk has {len(chunk)} bytes; at byte {start} of {size} it must have {length}"
            )
        file.write(chunk)
        written.update(chunk)
        if moved is not None:
            moved()
    return written.hexdigest()


def sha256_of(file: Path) -> str:
    """Of a file, in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _shown(value: Any) -> str:
    return repr(value)[:80]


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits:.40} is too large for a number")
    return number


def _is_text(text: str) -> bool:
    """Half of a surrogate pair, which JSON can have, is none: it could not be written anywhere."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
