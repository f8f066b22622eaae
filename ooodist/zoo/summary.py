"""A summary of a zoo's models beside them, for who opens the zoo for the first time.

Each machine and each user without the right to write has an index of its own. To make it, every
file would have to be opened, which takes minutes for thousands. The summary has what the index has
to know, so that only files that are newer than it are opened::

    {"version": 1, "clustered": 5000}
    {"row": {id, meta, bytes, ...}, "version": "...", "medoid": "...", "outline": [...]}    a model

It is gzipped, one JSON object a line. Whoever may add models may have written it, so nothing in it
is trusted: each line is checked like a file, and one that is wrong, or is of another state of its
file, does not count.
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
from typing import Annotated, Any

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline, plain_of
from ooodist.util import yaml_dataclass
from ooodist.util.yaml_dataclass import Range
from ooodist.zoo.entry import check_meta
from ooodist.zoo.index import Index, Row, unpacked
from ooodist.zoo.outline_json import read_outline
from ooodist.zoo.storage import State, Storage

logger = logging.getLogger("ooodist")

VERSION = 1
MOST_BYTES = 2**30  # unpacked
MOST_LINE_BYTES = 4 * 2**20
LEAST_NEW = 32  # models that are not in the summary, from which on it is worth while


@dataclass(frozen=True)
class Line:
    """What a summary says of a model.

    Attributes:
        row: without uses, which are each index's own.
        state: of the file that it is about.
        outline: of the model.
        medoid: id of the model in the middle of its cluster; empty: not known.
    """

    row: Row
    state: State
    outline: Outline
    medoid: str


@dataclass(frozen=True)
class _Head:
    version: Annotated[int, Range(VERSION, VERSION)]
    clustered: Annotated[int, Range(0, 10**9)]


def take(index: Index, storage: Storage, new: Mapping[str, State]) -> list[str]:
    """Puts those new models into the index of which the summary beside them says what is needed.

    Args:
        index: of the zoo; it is locked.
        storage: of the zoo.
        new: states of files of which the index knows nothing, by id.

    Returns:
        Ids of those models.
    """
    if len(new) < LEAST_NEW:
        return []
    try:
        content = storage.read_summary()
        lines, clustered = ([], 0) if content is None else read(content, new)
    except (OSError, UserError) as error:
        logger.warning("the summary of zoo %s is not used: %s", storage.address, error)
        return []
    rows = [(line.row, line.outline) for line in lines]
    versions = {line.row.id: line.state.version for line in lines}
    index.put(rows, versions, summarized=True)
    if not index.clustered():
        index.set_clusters({line.row.id: line.medoid for line in lines}, clustered)
    return [*versions]


def update(index: Index, storage: Storage) -> None:
    """Writes the summary anew, if of many models it says nothing yet.

    Args:
        index: of the zoo; it is locked.
        storage: of the zoo.
    """
    if index.unsummarized() < LEAST_NEW:
        return
    states, medoids = index.states(), index.clusters()
    outlines = index.outlines(states)
    lines = (
        Line(row, states[row.id], unpacked(outlines[row.id]), medoids[row.id])
        for row in index.rows()
    )
    try:
        storage.write_summary(write(lines, index.clustered()))
    except OSError as error:
        logger.warning(
            "no summary of zoo %s can be written, so others who open it for the first time must "
            "read all files: %s",
            storage.address,
            error,
        )
    index.set_summarized()


def write(lines: Iterable[Line], clustered: int) -> bytes:
    """A summary.

    Args:
        lines: of all models.
        clustered: models that there were when the clusters were made; 0 if they never were.
    """
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(_json({"version": VERSION, "clustered": clustered}))
        for line in lines:
            said = {
                "row": yaml_dataclass.plain(_unused(line.row)),
                "version": line.state.version,
                "medoid": line.medoid,
                "outline": plain_of(line.outline),
            }
            packed.write(_json(said))
    return content.getvalue()


def read(content: bytes, wanted: Mapping[str, State]) -> tuple[list[Line], int]:
    """The lines of a summary about files as they are now, and what ``write`` got as ``clustered``.

    Args:
        content: of the summary.
        wanted: states of files, by id.

    Raises:
        UserError: it is no summary of this version.
    """
    found: dict[str, Line] = {}
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            head = yaml_dataclass.read(_Head, json.loads(packed.readline(MOST_LINE_BYTES)))
            for text in _lines(packed):
                line = _line(text, wanted)
                if line is not None:
                    found[line.row.id] = line
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise UserError(f"it is damaged: {error}") from error
    return [*found.values()], head.clustered


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
    """What a line says; None: of another state of the file, or not as a model can be."""
    try:
        said = json.loads(text)
        state = State(said["row"]["bytes"], said["version"])
        if wanted.get(said["row"]["id"]) != state:
            return None
        row = _unused(yaml_dataclass.read(Row, said["row"]))
        check_meta(row.meta)
        outline = read_outline(said["outline"])
        medoid = said["medoid"]
    except (UserError, ValueError, TypeError, KeyError, RecursionError):
        return None
    shapes = [shape for operator in outline for shape in operator.shapes]
    if row.parameters != sum(map(math.prod, shapes)) or not isinstance(medoid, str):
        return None
    return Line(row, state, outline, medoid)
