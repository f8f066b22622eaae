"""The checkpoints in the output folder of a job, in both forms.

::

    runs/digits/checkpoint-epoch-000007.keras                after 7 epochs
    runs/digits/checkpoint-epoch-000007-step-00000120.keras  and 120 steps of the next
    runs/digits/best.keras                                   of the best epoch so far

    runs/gpt/checkpoint-epoch-000007/                        of a pipeline, in parts
    runs/gpt/best-epoch-000005/
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ooodist.checkpoint import archive
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.parts import MANIFEST_NAME, Parts
from ooodist.checkpoint.state import State
from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX, delete, flush_to_disk, replacing

logger = logging.getLogger("ooodist")

Place = tuple[int, int]  # complete epochs, and steps of the next
BEST_NAME = "best.keras"
_NAME = re.compile(r"checkpoint-epoch-(\d+)(?:-step-(\d+))?(\.keras)?")
_BEST = re.compile(r"best-epoch-\d+|best\.keras")


def file_name(epoch: int, step: int = 0) -> str:
    """The name of the Keras file after ``epoch`` epochs and ``step`` steps of the next."""
    return f"{parts_name(epoch, step)}.keras"


def parts_name(epoch: int, step: int = 0) -> str:
    """The name of the checkpoint in parts after ``epoch`` epochs and ``step`` steps."""
    return f"checkpoint-epoch-{epoch:06}" + (f"-step-{step:08}" if step else "")


def best_parts_name(epoch: int) -> str:
    """The name of the best checkpoint in parts; its epoch tells it from those before.

    A folder cannot take the place of another in one step, as a file can.
    """
    return f"best-epoch-{epoch:06}"


def place_of(name: str) -> Place | None:
    """The place of a checkpoint by its name; None if it is of something else."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def ordered(names: Iterable[str]) -> list[tuple[Place, str]]:
    """Those of the names that are of checkpoints, with their places, oldest first."""
    found = ((place_of(name), name) for name in names)
    return sorted((place, name) for place, name in found if place is not None)


def checkpoints(folder: Path) -> list[tuple[Place, Path]]:
    """The checkpoints in ``folder`` with their places, whole or damaged, oldest first."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [(place, folder / name) for place, name in ordered(names)]


def best_in(folder: Path) -> Path | None:
    """The best checkpoint of the last run in ``folder``; None if there is none."""
    found = [path for path in folder.iterdir() if _BEST.fullmatch(path.name)]
    return max(found, key=lambda path: (path.stat().st_mtime, path.name), default=None)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is of a checkpoint, be it damaged, rather than of a folder of them."""
    if not path.is_dir():
        return True
    return (path / MANIFEST_NAME).is_file() or any(
        kind.fullmatch(path.name) for kind in (_NAME, _BEST)
    )


def open_checkpoint(path: Path) -> Parts | KerasFile:
    """Opens a checkpoint of either form. Raises UserError if it is none, or damaged."""
    return Parts(path) if path.is_dir() else KerasFile(path)


def read_state(path: Path) -> State:
    """Reads the state in a checkpoint of either form, after checking every byte of it.

    Raises UserError if there is none, or it is damaged.
    """
    if not path.is_dir():
        return archive.read_state(path)
    with Parts(path) as parts:
        parts.verify()
        return parts.state


def latest(
    folder: Path,
    option: str = "checkpoint.resume",
    way_out: str = "give the path of one, or start anew without resume",
) -> tuple[Path, State]:
    """The newest undamaged checkpoint of a folder; logs the damaged ones.

    Raises UserError, which names the ``option``, if there is none.
    """
    found = checkpoints(folder)
    for _, path in reversed(found):
        try:
            return path, read_state(path)
        except UserError as error:
            logger.warning("%s: looking for an earlier one", error)
    damaged = " that is whole" if found else ""
    raise UserError(f"{option}: there is no checkpoint{damaged} in {folder}; {way_out}")


def expired(names: Collection[str], keep: int) -> list[str]:
    """All checkpoints but the ``keep`` newest, and what killed runs left incomplete."""
    left = [name for name in names if name.startswith(INCOMPLETE_PREFIX)]
    return [*(name for _, name in ordered(names)[:-keep]), *left]


def prune(folder: Path, keep: int) -> None:
    """Deletes what has :func:`expired`. What has become of the folder, the next checkpoint says."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(folder)
    for name in expired(names, keep):
        delete(folder / name)


def prune_best(folder: Path, keep: Path) -> None:
    """Deletes all best checkpoints in parts but one."""
    for path in folder.glob("best-epoch-*"):
        if path != keep and _BEST.fullmatch(path.name):
            delete(path)


@contextlib.contextmanager
def making(folder: Path) -> Iterator[Path]:
    """Yields a new folder that gets its name at the end. Raises UserError if it cannot be made."""
    with replacing(folder, "checkpoint") as temporary:
        temporary.mkdir()
        yield temporary


def duplicate(source: Path, target: Path) -> None:
    """Makes a second checkpoint of the same content. Raises UserError if it cannot be made.

    Parts never change, so they are linked, where that works. A Keras file is copied: people copy
    others over one, which would change a link, too.
    """
    if not source.is_dir():
        with replacing(target, "checkpoint") as temporary:
            shutil.copyfile(source, temporary)
        return
    with making(target) as temporary:
        for file in source.iterdir():
            try:
                os.link(file, temporary / file.name)
            except OSError:
                shutil.copyfile(file, temporary / file.name)
                flush_to_disk(temporary / file.name)
