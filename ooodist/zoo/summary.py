"""A summary of all models, stored in the zoo, from which a new index is built quickly.

Each machine, and each user without write permission, has an index of its own. Building one from
the files of a bucket alone takes a minute for a thousand models. The summary holds what the index
needs, so that only files newer than the summary are opened::

    {"version": 3}
    {"row": {id, meta, bytes, ...}, "version": "...", "outline": [...]}    a model

It is gzipped, with one JSON object per line. Anyone who may add models may have written it, so it
is not trusted: each line is checked like a file, and ignored if it is wrong or describes another
state of its file.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline
from ooodist.util import yaml_dataclass
from ooodist.zoo.entry import check_meta
from ooodist.zoo.index import Index, Row, json_of
from ooodist.zoo.reading import bounded_json
from ooodist.zoo.reading.outline_json import read_outline
from ooodist.zoo.storage import State, Storage

logger = logging.getLogger("ooodist")

_HEAD = {"version": 3}
MOST_BYTES = 2**30  # unpacked
MOST_HEAD_BYTES = 1000
MOST_LINE_BYTES = 4 * 2**20
LEAST_NEW = 32  # models missing from the index or summary that make using or writing it pay


@dataclass(frozen=True)
class Line:
    """One model in a summary.

    Attributes:
        row: its row in the index, without uses, which every index counts itself.
        state: state of the file that the line describes.
        outline: its operators and the shapes of their weights.
    """

    row: Row
    state: State
    outline: Outline


def take(index: Index, storage: Storage, new: Mapping[str, State]) -> list[str]:
    """Adds the new models that the summary describes to the index.

    Args:
        index: index of the zoo, locked by the caller.
        storage: files of the zoo.
        new: states of the files that are not in the index, by id.

    Returns:
        The ids of the models added.
    """
    if len(new) < LEAST_NEW:
        return []
    try:
        content = storage.read_summary()
        lines = [] if content is None else read(content, new)
    except (OSError, UserError) as error:
        logger.warning("the summary of zoo %s is not used: %s", storage.address, error)
        return []
    rows = [(line.row, line.outline) for line in lines]
    versions = {line.row.id: line.state.version for line in lines}
    index.put(rows, versions, summarized=True)
    return [*versions]


def update(index: Index, storage: Storage) -> None:
    """Rewrites the summary if many models are missing from it.

    Args:
        index: index of the zoo, locked by the caller.
        storage: files of the zoo.
    """
    if index.unsummarized() < LEAST_NEW:
        return
    states = index.states()
    outlines = index.outlines(states)
    rows = ((row, states[row.id], outlines[row.id]) for row in index.rows())
    try:
        storage.write_summary(write(rows))
    except OSError as error:
        logger.warning(
            "no summary of zoo %s can be written, so others who open it for the first time must "
            "read all files: %s",
            storage.address,
            error,
        )
    index.set_summarized()


def write(rows: Iterable[tuple[Row, State, bytes]]) -> bytes:
    """The content of a summary, gzipped.

    Args:
        rows: for each model its row, the state of its file, and its outline as the index has it.
    """
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(_json(_HEAD))
        for row, state, outline in rows:
            said = _json({"row": yaml_dataclass.plain(_unused(row)), "version": state.version})
            # The outline is JSON already; to parse it would take most of the time.
            packed.write(said[:-2] + b',"outline":' + json_of(outline) + b"}\n")
    return content.getvalue()


def read(content: bytes, wanted: Mapping[str, State]) -> list[Line]:
    """The lines that describe the current files.

    Args:
        content: the summary, gzipped.
        wanted: current states of the files, by id.

    Raises:
        UserError: it is damaged or not of this version.
    """
    found: dict[str, Line] = {}
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            head = json.loads(packed.readline(MOST_HEAD_BYTES))
            if head != _HEAD:
                raise UserError(f"it begins with {head!r:.80}; this version of ooodist has {_HEAD}")
            for text in _lines(packed):
                line = _line(text, wanted)
                if line is not None:
                    found[line.row.id] = line
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise UserError(f"it is damaged: {error}") from error
    return [*found.values()]


def _unused(row: Row) -> Row:
    return replace(row, uses=0, value=1.0, last_used=row.created)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _lines(packed: gzip.GzipFile) -> Iterator[bytes]:
    read = 0
    while text := packed.readline(MOST_LINE_BYTES):
        read += len(text)
        if read > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        yield text


def _line(text: bytes, wanted: Mapping[str, State]) -> Line | None:
    """Parses a line; None if it is invalid or describes another state of the file."""
    try:
        said = bounded_json.loads(text, "a line")
        state = State(said["row"]["bytes"], said["version"])
        if wanted.get(said["row"]["id"]) != state:
            return None
        row = _unused(yaml_dataclass.read(Row, said["row"]))
        check_meta(row.meta)
        outline = read_outline(said["outline"])
    except (UserError, ValueError, TypeError, KeyError, RecursionError):
        return None
    shapes = [shape for operator in outline for shape in operator.shapes]
    if row.parameters != sum(map(math.prod, shapes)):
        return None
    return Line(row, state, outline)
