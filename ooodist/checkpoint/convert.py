"""Makes the plain file of a checkpoint in parts, and parts of a plain file.

Both take the memory of one variable, and neither the model's classes nor Keras: a manifest, and the
state in a Keras file, say where each value belongs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from ooodist.checkpoint import archive
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.arrays import Writer, as_bytes
from ooodist.checkpoint.folder import is_checkpoint, latest, making, read_state
from ooodist.checkpoint.parts import Manifest, Parts, part_name, write_manifest
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.replacing import replacing

logger = logging.getLogger("ooodist")


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
        file: ends with ``.keras``; one of this name stays until the new one is complete.
        best: take the weights of the best epoch, if the checkpoint has them. No run stood there, so
            the file is no checkpoint then.

    Raises:
        UserError: the checkpoint is damaged, or the file cannot be written.
    """
    with Parts(folder) as parts, replacing(file, "the file") as temporary:
        manifest, best = parts.manifest, best and parts.num_best > 0
        weights = temporary.with_suffix(".h5")
        best_weights = temporary.with_suffix(".npz")
        try:
            fingerprint = _write_weights(parts, weights, best=best)
            state = replace(parts.state, fingerprint=fingerprint)
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as target:
                target.writestr(archive.METADATA_MEMBER, manifest.metadata)
                target.writestr(archive.CONFIG_MEMBER, manifest.config)
                target.write(weights, archive.WEIGHTS_MEMBER)
                for name, entry in manifest.assets.items():
                    target.writestr(name, parts.read_entry(entry).tobytes())
                if not best:
                    target.writestr(archive.STATE_MEMBER, json.dumps(yaml_dataclass.plain(state)))
                if parts.num_best and not best:
                    with Writer(best_weights) as writer:
                        for index in range(parts.num_best):
                            writer.write(archive.best_member(index), parts.read_best(index))
                    target.write(best_weights, archive.BEST_WEIGHTS_MEMBER)
                if manifest.rank_state and not best:
                    target.writestr(
                        archive.RANKS_MEMBER, archive.saved_by_rank(parts.read_rank_state())
                    )
        finally:
            weights.unlink(missing_ok=True)
            best_weights.unlink(missing_ok=True)


def _write_weights(parts: Parts, file: Path, *, best: bool) -> str:
    """Writes the weights file and returns the fingerprint of the variables."""
    manifest, fingerprint = parts.manifest, hashlib.sha256()
    with archive.weights_file(file, manifest.groups) as weights:
        for index, variable in enumerate(parts.state.variables):
            is_best = best and index < parts.num_best
            value = parts.read_best(index) if is_best else parts.read(index)
            fingerprint.update(as_bytes(value))
            archive.write_places(weights, variable.places, value)
        for place, entry in manifest.extras.items():
            archive.write_places(weights, [place], parts.read_entry(entry))
    return fingerprint.hexdigest()


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
    with zipfile.ZipFile(file) as plain:
        if archive.RANKS_MEMBER in plain.namelist():
            logger.warning(
                "split: what gradients have lost on a wire of 16 bits is left out, as no rank has "
                "a part yet; the first steps of a job without it differ a little"
            )
    with KerasFile(file) as source, making(folder) as temporary:
        state = source.state
        groups, places = source.layout()
        known = {place for variable in state.variables for place in variable.places}
        fingerprint = hashlib.sha256()
        variables, best, extras, assets = [], [], {}, {}
        with Writer(temporary / part_name(0)) as writer:
            for index, variable in enumerate(state.variables):
                value = source.read(index)
                fingerprint.update(as_bytes(value))
                variables.append(writer.write(variable.path, value))
            for index, variable in enumerate(state.variables[: source.num_best]):
                best.append(writer.write(f"best/{variable.path}", source.read_best(index)))
            for place in places:
                if place not in known:
                    extras[place] = writer.write(f"file/{place}", source.read_place(place))
            for name, content in source.assets().items():
                value = np.frombuffer(content, np.uint8)
                assets[name] = writer.write(f"file/{name}", value)
        if fingerprint.hexdigest() != state.fingerprint:
            raise UserError(
                f"checkpoint {file} does not have the values that were saved: another program has "
                "changed it; write it anew, or take another"
            )
        manifest = Manifest(
            state=replace(state, fingerprint=""),
            config=source.read_text(archive.CONFIG_MEMBER),
            metadata=source.read_text(archive.METADATA_MEMBER),
            sizes={part_name(0): (temporary / part_name(0)).stat().st_size},
            variables=tuple(variables),
            best=tuple(best),
            groups=groups,
            extras=extras,
            assets=assets,
        )
        write_manifest(temporary, manifest)
