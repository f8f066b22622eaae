"""Finds, counts and describes the records of TFRecord files."""

from __future__ import annotations

import glob
import gzip
import logging
import struct
import time
import zlib
from typing import BinaryIO, cast

import tensorflow as tf

from ooodist.errors import UserError

log = logging.getLogger("ooodist")

# A record is: its length (8 bytes), a checksum (4), the bytes themselves, a checksum (4).
HEADER_BYTES = 12
FOOTER_BYTES = 4


def find_records(pattern: str) -> list[str]:
    """The sorted names of the files that match ``pattern``; at least one."""
    files = sorted(glob.glob(pattern))
    if not files:
        raise UserError(f"no file fits {pattern}: give the TFRecord files' pattern, as in a shell")
    return files


def count_records(files: list[str], compression: str) -> list[int]:
    """The number of records in each file.

    Reads only the records' lengths, so uncompressed files take little time. Raises UserError for a
    file that is empty, cut off, or no TFRecord file.
    """
    start = time.perf_counter()
    counts = []
    for path in files:
        try:
            with gzip.open(path) if compression == "gzip" else open(path, "rb") as file:
                counts.append(_count(path, cast(BinaryIO, file)))
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{path} cannot be read ({error}): it must be a whole TFRecord file with "
                f"data.compression {compression}"
            ) from error
    total = sum(counts)
    if total == 0:
        raise UserError(f"there are no records in {files[0]} or {len(files) - 1} further files")
    log.info(
        "counted %s records in %d files in %.1f s",
        f"{total:,}",
        len(files),
        time.perf_counter() - start,
    )
    return counts


def _count(path: str, file: BinaryIO) -> int:
    records = 0
    while header := file.read(HEADER_BYTES):
        length = struct.unpack("<Q", header[:8])[0] if len(header) == HEADER_BYTES else 0
        # A file may be positioned past its end; reading a record's last byte shows a cut.
        within = length < 2**40 and len(header) == HEADER_BYTES
        if within:
            file.seek(length + FOOTER_BYTES - 1, 1)
        if not within or not file.read(1):
            raise UserError(
                f"{path} is cut off or no TFRecord file: record {records + 1} is not whole; "
                "write it again, or set data.compression"
            )
        records += 1
    return records


def describe_record(record: bytes) -> str:
    """Describes the features of one ``tf.train.Example``, for an error message."""
    example = tf.train.Example.FromString(record)
    parts = []
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind") or "no_list"
        values = getattr(feature, kind).value if kind != "no_list" else []
        parts.append(f"{name} ({len(values)} {kind.removesuffix('_list')})")
    return ", ".join(parts) or "no features"
