"""Copies checkpoints to a second place while the training goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.copies import OPTION, Copies
from ooodist.errors import UserError

logger = logging.getLogger("ooodist")


class Copying:
    """Copies what it is given, in a thread, one file after the other; on rank 0.

    What comes while another is copied waits, and is left out if a newer one of its kind comes. A
    copy that fails is logged, and the training goes on; the next one may succeed.

    Args:
        copies: the place.
        keep: how many of the newest checkpoints to keep there.
    """

    def __init__(self, copies: Copies, keep: int) -> None:
        self._copies = copies
        self._keep = keep
        self._lock = threading.Lock()
        self._waiting: dict[str, Path] = {}  # by kind
        self._failed: dict[str, str] = {}  # why the last of a kind is not there, by kind
        self._thread: threading.Thread | None = None

    def begin(self, paths: Sequence[Path]) -> None:
        """Begins to copy checkpoints, or other files of the output folder; returns at once."""
        with self._lock:
            self._waiting |= {_kind_of(path): path for path in paths}
            if self._waiting and self._thread is None:
                # A daemon: a job that fails does not wait for it.
                self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
                self._thread.start()

    def settle(self, seconds: float | None = None) -> None:
        """Waits until everything is copied, at most so long (None: as long as it takes)."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def finish(self) -> None:
        """Waits until everything is copied. Raises UserError if the last of a kind could not be."""
        self.settle()
        if self._failed:
            reasons = "; ".join(self._failed.values())
            raise UserError(
                f"{OPTION} is {self._copies.address}, where not all could be copied: {reasons}; "
                "it is all in the output folder"
            )

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                kind, path = next(iter(self._waiting.items()))
                del self._waiting[kind]
            self._copy(kind, path)

    def _copy(self, kind: str, path: Path) -> None:
        try:
            self._copies.put(path)
            self._copies.prune(self._keep)
        except OSError as error:
            if not path.exists():
                logger.info("%s was replaced by a newer one before it was copied", path)
                return
            self._failed[kind] = f"{path.name}: {error}"
            logger.warning("%s was not copied to %s: %s", path, self._copies.address, error)
        else:
            self._failed.pop(kind, None)


def _kind_of(path: Path) -> str:
    """What a newer file takes the place of."""
    if folders.place_of(path.name) is not None:
        return "checkpoint"
    return "best" if path.name.startswith("best") else path.name
