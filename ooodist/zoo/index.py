"""The index of a zoo: one row a model in SQLite, so that a query need not open the files.

The files are the truth. If the index is deleted, damaged or of another version, it is made again
from them; only how often each model was used stands here alone and begins anew then.

Several processes and threads may use one index at a time, on one machine: SQLite's write-ahead log
needs memory that they share.
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
from ooodist.transfer.graph.operators import Operator, Outline, plain_of
from ooodist.util import yaml_dataclass
from ooodist.zoo import retention
from ooodist.zoo.entry import Meta
from ooodist.zoo.storage import State

logger = logging.getLogger("ooodist")

VERSION = 2
BUSY_SECONDS = 60.0
MOST_PARAMETERS = 900  # of one statement; SQLite allows 999 at least

_TABLES = """
create table models (
    id text primary key, meta text not null, task text not null, dataset text not null,
    bytes integer not null, parameters integer not null, created real not null,
    uses integer not null, value real not null, last_used real not null,
    outline blob not null, cluster text not null default '',
    version text not null, summarized integer not null
);
create table settings (key text primary key, value text not null);
"""
_COLUMNS = "id, meta, bytes, parameters, created, uses, value, last_used"


@dataclass(frozen=True)
class Row:
    """A model in the index.

    Attributes:
        id: the name of its file without the ending.
        meta: what is said about it.
        bytes: of its file.
        parameters: numbers in the weights of its graph.
        created: unix seconds.
        uses: how often its weights were read, since the index was made.
        value: the same, with what was long ago counting less, as of the last use; see retention.py.
        last_used: unix seconds; when it was added, if it never was.
    """

    id: str
    meta: Meta
    bytes: int
    parameters: int
    created: float
    uses: int = 0
    value: float = 1.0
    last_used: float = 0.0

    def worth(self, now: float) -> float:
        """What it is worth to keep it, at these unix seconds."""
        return retention.value(
            self.meta.accuracy, retention.decayed(self.value, self.last_used, now)
        )


class Index:
    """The rows of a zoo.

    Args:
        file: of SQLite; made if there is none.

    Raises:
        UserError: it can be neither opened nor made.
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
        """Ends the use of the file."""
        with self._thread_lock:
            self._connection.close()

    def reopen(self) -> None:
        """Makes a damaged index anew, without rows."""
        with self._thread_lock, self.exclusively():
            self._connection.close()
            self._connection = self._opened()

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """While one process or thread is in here, no other one on this machine is.

        The system ends it for a process that is killed.
        """
        with self.file.with_name(f"{self.file.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def rows(self, task: str = "", dataset: str = "") -> list[Row]:
        """Those of a task and a data set, by id; empty: of any."""
        found = self._execute(
            f"select {_COLUMNS} from models where (? = '' or task = ?) "
            "and (? = '' or dataset = ?) order by id",
            (task, task, dataset, dataset),
        )
        return [_row(each) for each in found]

    def row(self, model: str) -> Row | None:
        """The row of one model."""
        found = self._execute(f"select {_COLUMNS} from models where id = ?", (model,))
        return _row(found[0]) if found else None

    def states(self) -> dict[str, State]:
        """Of each model's file, as it was read, by id."""
        found = self._execute("select id, bytes, version from models")
        return {model: State(size, version) for model, size, version in found}

    def unsummarized(self) -> int:
        """Models of which the summary beside the models says nothing, as far as is known here."""
        return int(self._execute("select count(*) from models where not summarized")[0][0])

    def set_summarized(self) -> None:
        """The summary says something of all models."""
        with self._thread_lock, self._connection:
            self._connection.execute("update models set summarized = 1")

    def outlines(self, models: Collection[str]) -> dict[str, bytes]:
        """Packed outlines of these models, as far as there are such, by id; see ``unpacked``."""
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
        """Adds models, or says anew what they are.

        Args:
            rows: with outlines.
            versions: of the files by id; see ``State``.
            summarized: whether they are from the summary beside the models.
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
        """Removes rows; those that there are not are removed already."""
        with self._thread_lock, self._connection:
            self._connection.executemany(
                "delete from models where id = ?", [(model,) for model in models]
            )

    def count_use(self, model: str, now: float) -> None:
        """The weights of a model were read, at these unix seconds."""
        with self._thread_lock, self._connection:
            self._connection.execute("begin immediate")
            row = self.row(model)
            if row is not None:
                self._connection.execute(
                    "update models set uses = uses + 1, value = ?, last_used = ? where id = ?",
                    (retention.used(row.value, row.last_used, now), now, model),
                )

    def clusters(self) -> dict[str, str]:
        """For each model the one in the middle of its cluster; empty text: not known yet."""
        return dict(self._execute("select id, cluster from models order by id"))

    def set_clusters(self, medoids: Mapping[str, str], clustered: int | None = None) -> None:
        """For these models, the one in the middle of their cluster.

        Args:
            medoids: ids by ids.
            clustered: models that there were when all clusters were made; None: not made anew.
        """
        with self._thread_lock, self._connection:
            self._connection.executemany(
                "update models set cluster = ? where id = ?",
                [(medoid, model) for model, medoid in medoids.items()],
            )
            if clustered is not None:
                self._connection.execute(
                    "insert or replace into settings values ('clustered', ?)", (str(clustered),)
                )

    def clustered(self) -> int:
        """Models that there were when the clusters were made; 0 if they never were."""
        found = self._execute("select value from settings where key = 'clustered'")
        return int(found[0][0]) if found else 0

    def _execute(self, statement: str, values: Collection[object] = ()) -> list[tuple]:
        with self._thread_lock:
            return self._connection.execute(statement, tuple(values)).fetchall()

    def _opened(self) -> sqlite3.Connection:
        """A connection to an index of this version; what it takes the place of is logged."""
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
            raise  # as without a permission, or on a full disk: nothing that a new one would mend
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
        connection.execute("pragma synchronous = normal")  # the files can make it again
        return connection


def packed(outline: Outline) -> bytes:
    """An outline as compressed JSON."""
    return zlib.compress(json.dumps(plain_of(outline), separators=(",", ":")).encode(), 1)


def unpacked(content: bytes) -> Outline:
    """The outline that :func:`packed` packed."""
    return tuple(
        Operator(op, tuple(inputs), tuple(map(tuple, shapes)))
        for op, inputs, shapes in json.loads(zlib.decompress(content))
    )


def _row(values: tuple) -> Row:
    meta = json.loads(values[1])
    meta |= {"tags": tuple(meta["tags"]), "access": tuple(meta["access"])}
    return Row(values[0], Meta(**meta), *values[2:])
