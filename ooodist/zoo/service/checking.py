"""Checks an uploaded file in a process of its own, whose memory and time are limited.

Whatever is in the file, the service goes on: Python lets no other thread run while it parses JSON,
and what HDF5's C library makes of a damaged file ends that process only. ``python -m`` runs it,
with the file as its input; what it finds is a line of JSON.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from typing import BinaryIO

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import outline_from, plain_of
from ooodist.util import yaml_dataclass
from ooodist.zoo import entry
from ooodist.zoo.entry import Checked, Meta
from ooodist.zoo.full_disk import is_disk_full

COMMAND = [sys.executable, "-m", __name__]
BYTES = 2 * 2**30  # of address space, most of which libraries take; beside the weights
BYTES_PER_BYTE = 3  # of the file: one weight may be all of it, in float64 once more
SECONDS = 30  # on the processor, beside those for the size
BYTES_PER_SECOND = 20 * 2**20


def check(file: BinaryIO) -> Checked:
    """Checks a model file, like :func:`ooodist.zoo.entry.check`, in a process of its own.

    Args:
        file: an open file of this machine, all of which is written.

    Raises:
        UserError: the file is damaged, or checking it takes more than is allowed.
        OSError: the disk is full.
    """
    file.flush()
    # Its copy of the weights must be where the service has its own, and one thread is enough.
    variables = {"TMPDIR": tempfile.gettempdir(), "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        COMMAND,
        stdin=file,
        capture_output=True,
        env=os.environ | variables,
        check=False,
    )
    if ended.returncode:
        why = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise UserError(
            "model file that was sent cannot be checked within the time and memory that its size "
            f"allows ({why or f'exit code {ended.returncode}'}); save the model anew"
        )
    found = json.loads(ended.stdout)
    if found.get("full"):
        raise OSError(errno.ENOSPC, found["error"])
    if "error" in found:
        raise UserError(found["error"])
    meta = yaml_dataclass.read(Meta, found["meta"], "meta")
    return Checked(meta, outline_from(found["outline"]), found["digest"])


def main() -> None:
    """Checks the file that is this process's input, and prints what is found."""
    size = os.fstat(0).st_size
    memory = BYTES + BYTES_PER_BYTE * size
    seconds = SECONDS + size // BYTES_PER_SECOND
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open(0, "rb", closefd=False) as file:
            checked = entry.check(file)
    except UserError as error:
        said = {"error": str(error), "full": is_disk_full(error)}
    else:
        said = {
            "meta": yaml_dataclass.plain(checked.meta),
            "outline": plain_of(checked.outline),
            "digest": checked.digest,
        }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
