"""Makes the plain file of a checkpoint in parts, and parts of a plain file.

Both take the memory of one variable, and neither the model's classes nor Keras: a manifest, and the
state in a Keras file, say where each value belongs.
"""

from __future__ import annotations

from pathlib import Path

from ooodist.checkpoint import archive
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.arrays import as_bytes
from ooodist.checkpoint.folder import is_checkpoint, latest, making, read_state
from ooodist.checkpoint.parts import Parts, complete, write_part
from ooodist.errors import UserError
from ooodist.util.digest import hex_digest


def find(path: Path, option: str) -> Path:
    """The checkpoint at a path, or the newest that is whole in a folder of them.

    Raises UserError, which names the ``option``, if there is none.
    """
    if not path.exists():
        raise UserError(f"{option} is {path}, which does not exist; check the path")
    if is_checkpoint(path):
        return path
    return latest(path, option, "give the output folder of a job, or the path of one")[0]


def merge(folder: Path, file: Path, *, best: bool = False) -> None:
    """Writes a checkpoint in parts as one Keras file, which is a checkpoint, too.

    Args:
        folder: the checkpoint in parts.
        file: see :func:`archive.write`, as for the others.
        best: take the weights of the best epoch.

    Raises:
        UserError: the checkpoint is damaged, or the file cannot be written.
    """
    with Parts(folder) as parts:
        archive.write(file, parts, best=best)


def split(file: Path, folder: Path) -> None:
    """Writes a Keras file that is a checkpoint as a checkpoint in parts, of one part.

    Each rank of a pipeline reads what it needs of it, so more parts would be of no use.

    Args:
        file: a checkpoint.
        folder: the checkpoint in parts, which must not exist.

    Raises:
        UserError: the file is damaged or no checkpoint, or the folder cannot be written.
    """
    read_state(file)  # every byte of it is checked
    with KerasFile(file) as source, making(folder) as temporary:
        values = map(source.read, range(len(source.state.variables)))
        if hex_digest(map(as_bytes, values)) != source.state.fingerprint:
            raise UserError(
                f"checkpoint {file} does not have the values that were saved: another program has "
                "changed it; write it anew, or take another"
            )
        complete(temporary, source, write_part(temporary, 0, source))
