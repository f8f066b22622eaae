"""The index of a zoo: an SQLite file with one row per model, so that queries open no model files.

The files are authoritative. An index that is deleted, damaged or of another version is rebuilt from
them; only the use counts exist nowhere else and start over.

Several processes and threads may use an index at the same time, but only on one machine: SQLite's
write-ahead log needs shared memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline, outline_from, plain_of
from ooodist.util import yaml_dataclass
from ooodist.zoo import retention
from ooodist.zoo.entry import Meta
from ooodist.zoo.storage import State

logger = logging.getLogger("ooodist")

VERSION = 4
BUSY_SECONDS = 60.0
MOST_PARAMETERS = 900  # per statement; SQLite allows at least 999

_TABLES = """
create table models (
    id text primary key, meta text not null, task text not null, dataset text not null,
    bytes integer not null, parameters integer not null, created real not null,
    uses integer not null, value real not null, last_used real not null,
    outline blob not null,
    version text not null, summarized integer not null
);
"""
_COLUMNS = "id, meta, bytes, parameters, created, uses, value, last_used"


@dataclass(frozen=True)
class Row:
    """A model in the index.

    Attributes:
        id: the name of its file without the suffix.
        meta: metadata of the model.
        bytes: size of its file.
        parameters: number of scalars in the weights of its graph.
        created: when its file was written, in Unix seconds.
        uses: how often its weights were read since the index was made.
        value: the uses, decayed over time, as of the last use; see retention.py.
        last_used: Unix seconds of the last use; ``created`` if there was none.
    """

    id: str
    meta: Meta
    bytes: int
    parameters: int
    created: float
    uses: int = 0
    value: float = 1.0
    last_used: float = 0.0

    def worth(self, now: float, quality: float | None) -> float:
        """How much keeping the model is worth at the time ``now``, in Unix seconds.

        ``quality`` is that of :class:`ooodist.zoo.metrics.Quality`.
        """
        return retention.value(quality, retention.decayed(self.value, self.last_used, now))


class Index:
    """The rows of a zoo, in an SQLite file.

    Args:
        file: the SQLite file; created if missing.

    Raises:
        UserError: the file can be neither opened nor created.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._thread_lock = threading.RLock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with self.exclusively():
                self._connection = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"the index {file} of the zoo cannot be used ({error}); name another place for it"
            ) from error

    def close(self) -> None:
        """Closes the file."""
        with self._thread_lock:
            self._connection.close()

    def reopen(self) -> None:
        """Replaces a damaged index with an empty one."""
        with self._thread_lock, self.exclusively():
            self._connection.close()
            self._connection = self._opened()

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Locks the index against all other processes and threads on this machine.

        The operating system releases the lock of a killed process.
        """
        with self.file.with_name(f"{self.file.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def rows(self, task: str = "", dataset: str = "") -> list[Row]:
        """The rows of a task and a data set, ordered by id; an empty text matches any."""
        found = self._execute(
            f"select {_COLUMNS} from models where (? = '' or task = ?) "
            "and (? = '' or dataset = ?) order by id",
            (task, task, dataset, dataset),
        )
        return [_row(each) for each in found]

    def row(self, model: str) -> Row | None:
        """The row of a model; None if there is none."""
        found = self._execute(f"select {_COLUMNS} from models where id = ?", (model,))
        return _row(found[0]) if found else None

    def states(self) -> dict[str, State]:
        """The state of each model's file when it was read, by id."""
        found = self._execute("select id, bytes, version from models")
        return {model: State(size, version) for model, size, version in found}

    def unsummarized(self) -> int:
        """The number of models that the summary lacks, as far as this index knows."""
        return int(self._execute("select count(*) from models where not summarized")[0][0])

    def set_summarized(self) -> None:
        """Marks all models as contained in the summary."""
        with self._thread_lock, self._connection:
            self._connection.execute("update models set summarized = 1")

    def outlines(self, models: Collection[str]) -> dict[str, bytes]:
        """The packed outlines of those models that exist, by id; see ``unpacked``."""
        found: dict[str, bytes] = {}
        wanted = list(models)
        for start in range(0, len(wanted), MOST_PARAMETERS):
            part = wanted[start : start + MOST_PARAMETERS]
            marks = ", ".join("?" * len(part))
            found |= self._execute(f"select id, outline from models where id in ({marks})", part)
        return found

    def put(
        self,
        rows: Iterable[tuple[Row, Outline]],
        versions: Mapping[str, str] | None = None,
        *,
        summarized: bool = False,
    ) -> None:
        """Adds models or replaces their rows.

        Args:
            rows: pairs of a row and the model's outline.
            versions: versions of the files by id; see ``State``.
            summarized: whether the rows come from the summary.
        """
        values = [
            (
                row.id,
                json.dumps(yaml_dataclass.plain(row.meta)),
                row.meta.task,
                row.meta.dataset,
                *dataclasses.astuple(row)[2:],
                packed(outline),
                (versions or {}).get(row.id, ""),
                summarized,
            )
            for row, outline in rows
        ]
        marks = ", ".join("?" * 13)
        with self._thread_lock, self._connection:
            self._connection.executemany(
                "insert or replace into models (id, meta, task, dataset, bytes, parameters, "
                f"created, uses, value, last_used, outline, version, summarized) values ({marks})",
                values,
            )

    def delete(self, models: Iterable[str]) -> None:
        """Removes the rows of these models; missing ones are ignored."""
        with self._thread_lock, self._connection:
            self._connection.executemany(
                "delete from models where id = ?", [(model,) for model in models]
            )

    def count_use(self, model: str, now: float) -> None:
        """Counts a use of a model's weights at the time ``now``, in Unix seconds."""
        with self._thread_lock, self._connection:
            self._connection.execute("begin immediate")
            row = self.row(model)
            if row is not None:
                self._connection.execute(
                    "update models set uses = uses + 1, value = ?, last_used = ? where id = ?",
                    (retention.used(row.value, row.last_used, now), now, model),
                )

    def _execute(self, statement: str, values: Collection[object] = ()) -> list[tuple]:
        with self._thread_lock:
            return self._connection.execute(statement, tuple(values)).fetchall()

    def _opened(self) -> sqlite3.Connection:
        """Connects to an index of this version; logs why an existing one is replaced."""
        new = not self.file.exists()
        try:
            connection = self._connect()
            try:
                (state,) = connection.execute("pragma quick_check(1)").fetchone()
                (version,) = connection.execute("pragma user_version").fetchone()
            except sqlite3.OperationalError:
                connection.close()
                raise
            except sqlite3.DatabaseError as error:
                state, version = str(error), 0
            if state == "ok" and version == VERSION:
                return connection
            connection.close()
            reason = f"it is of version {version}" if state == "ok" else f"it is damaged: {state}"
        except sqlite3.OperationalError:
            raise  # such as no permission or a full disk, which a new index would not fix
        except sqlite3.DatabaseError as error:
            reason = f"it is damaged: {error}"
        if not new:
            logger.warning("the index %s is made anew from the models (%s)", self.file, reason)
        for ending in ("", "-wal", "-shm"):
            self.file.with_name(self.file.name + ending).unlink(missing_ok=True)
        connection = self._connect()
        connection.executescript(f"begin;{_TABLES}pragma user_version = {VERSION};commit;")
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=BUSY_SECONDS, check_same_thread=False)
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.Error:
            connection.close()
            raise
        connection.execute("pragma synchronous = normal")  # it can be rebuilt from the files
        return connection


def packed(outline: Outline) -> bytes:
    """An outline as compressed JSON."""
    return zlib.compress(json.dumps(plain_of(outline), separators=(",", ":")).encode(), 1)


def json_of(content: bytes) -> bytes:
    """The JSON, on one line, that :func:`packed` compressed."""
    return zlib.decompress(content)


def unpacked(content: bytes) -> Outline:
    """The outline that :func:`packed` packed."""
    return outline_from(json.loads(json_of(content)))


def _row(values: tuple) -> Row:
    meta = json.loads(values[1])
    meta |= {"tags": tuple(meta["tags"]), "access": tuple(meta["access"])}
    return Row(values[0], Meta(**meta), *values[2:])
