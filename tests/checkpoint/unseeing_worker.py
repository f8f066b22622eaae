"""Rank 1 does not see the folder that rank 0 writes to; see test_together.py."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from ooodist import engines
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import parallel_write
from ooodist.errors import SharedError
from tests.checkpoint.examples import make_model, state_of

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
CANNOT = 77


def hide(folder: Path) -> None:
    """Mounts an empty file system over a folder, which this process alone sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    for done in (
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        lambda: libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, None),
    ):
        if done():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> int:
    engine = engines.init("mpi")
    folder = Path(sys.argv[1])
    can = True
    if engine.rank == 1:
        try:
            hide(folder)
        except OSError:
            can = False
    if engine.broadcast_text(str(can), root=1) == "False":
        engines.shutdown()
        return CANNOT
    try:
        parallel_write.write(engine, folder / folders.parts_name(3), make_model(), state_of(), {})
    except SharedError as error:
        print(f"rank {engine.rank}: {error}", flush=True)
    engines.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
