"""Finds image files in class folders, and checks early that they can be read."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from ooodist.errors import UserError
from ooodist.util.quantity import counted

log = logging.getLogger("ooodist")

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
FORMATS = ("PNG", "JPEG", "MPO", "BMP", "GIF")  # MPO: a JPEG of several pictures, from phones
# A mark in the last bytes of a complete file. BMP has none, and GIF's is a common byte.
ENDS = {"PNG": b"IEND", "JPEG": b"\xff\xd9", "MPO": b"\xff\xd9"}
TAIL_BYTES = 64


def class_folders(root: str) -> list[str]:
    """The sorted names of the folders in ``root``: at least one, without hidden ones."""
    if not Path(root).is_dir():
        raise UserError(f"{root} is not a folder: image data needs a folder with one per class")
    names = sorted(
        entry.name
        for entry in Path(root).iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise UserError(f"{root} has no folders in it: image data needs one folder per class")
    return names


def find_images(root: str, classes: list[str]) -> tuple[list[str], list[int]]:
    """All image files below the class folders in a fixed order, and their class numbers."""
    files: list[str] = []
    labels: list[int] = []
    ignored: list[str] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in Path(root, name).rglob("*") if path.is_file())
        images = [str(path) for path in found if path.suffix.lower() in SUFFIXES]
        ignored += [str(path) for path in found if path.suffix.lower() not in SUFFIXES]
        if not images:
            log.warning("class folder %s has no images", Path(root, name))
        files += images
        labels += [label] * len(images)
    if ignored:
        log.warning(
            "ignored %s of other kinds, such as %s", counted(len(ignored), "file"), ignored[0]
        )
    if not files:
        raise UserError(f"{root} has no images in its class folders: allowed are {SUFFIXES}")
    return files, labels


def check_images(files: list[str], at_most: int) -> None:
    """Opens ``at_most`` files, evenly spread; raises UserError for one that is no complete image.

    Only the header and the last bytes are read; a file whose end does not show that it is complete
    is decoded. 20,000 files take some seconds. Files that are not checked here, and pixels that are
    damaged in the middle of a file, end the training with TensorFlow's own error.
    """
    start = time.perf_counter()
    num_checked = min(at_most, len(files))
    for number in range(num_checked):
        _check_image(files[number * len(files) // num_checked])
    log.info(
        "opened %d of %d images in %.1f s", num_checked, len(files), time.perf_counter() - start
    )


def _check_image(path: str) -> None:
    try:
        with Image.open(path) as image:
            file_format, mode = image.format, image.mode
            if file_format in FORMATS and not _ends_whole(path, file_format):
                image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{path} cannot be read as an image ({error}): repair or remove the file"
        ) from error
    if file_format not in FORMATS:
        raise UserError(f"{path} is a {file_format} image: allowed are png, jpeg, bmp, gif")
    if file_format == "BMP" and mode not in ("L", "RGB", "RGBA"):
        # TensorFlow takes the palette's indices for gray values.
        raise UserError(f"{path} is a BMP image with a palette: convert it to png")


def _ends_whole(path: str, file_format: str) -> bool:
    if file_format not in ENDS:
        return False
    with open(path, "rb") as file:
        file.seek(max(0, Path(path).stat().st_size - TAIL_BYTES))
        return ENDS[file_format] in file.read()
