#!/usr/bin/env python3
"""Stands in for NVIDIA's fatbinary, which no wheel for CUDA 12 has, where clang calls it.

    fatbinary.py -64 --create OUT --image=profile=sm_90,file=kernels.o ...
    fatbinary.py --list FILE

Packs images of a GPU's code into one file, by the library of the wheel nvidia-nvfatbin-cu12, whose
path is in NVFATBIN. A profile is sm_NN (machine code) or compute_NN (PTX). Or lists the images in a
program or library.
"""

import argparse
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

FILE = struct.Struct("<IHHQ")  # magic number, version, size of this header, size of the images
MAGIC = 0xBA55ED50
IMAGE = struct.Struct("<HHIQ12xI")  # kind, version, sizes of this header and the image, profile
KINDS = {1: "compute", 2: "sm"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-64", action="store_true", dest="wide")  # clang says it always
    parser.add_argument("--create", type=Path, metavar="OUT")
    parser.add_argument("--image", action="append", default=[])
    parser.add_argument("--list", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.list:
        print("code for GPUs:", *images_in(arguments.list.read_bytes()))
        return
    if not arguments.create or not arguments.image:
        parser.error("give --create and --image, or --list")
    images = [dict(part.split("=", 1) for part in image.split(",")) for image in arguments.image]
    arguments.create.write_bytes(packed([(i["profile"], Path(i["file"])) for i in images]))


def packed(images: list[tuple[str, Path]]) -> bytes:
    """The file of these images, each with its profile."""
    library = ctypes.CDLL(os.environ["NVFATBIN"])
    library.nvFatbinGetErrorString.restype = ctypes.c_char_p

    def call(name: str, *arguments: object) -> None:
        result = getattr(library, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: {library.nvFatbinGetErrorString(result).decode()}")

    handle = ctypes.c_void_p()
    # Compressed by default, which needs a driver of the same age: these images are small.
    options = (ctypes.c_char_p * 3)(b"-64", b"-cuda", b"-compress=false")
    call("nvFatbinCreate", ctypes.byref(handle), options, ctypes.c_size_t(len(options)))
    for profile, file in images:
        kind, number = profile.split("_")
        arguments = [number.encode(), file.name.encode()]
        if kind == "compute":
            code = file.read_bytes().rstrip(b"\0") + b"\0"  # a text, as C has it
            call("nvFatbinAddPTX", handle, code, ctypes.c_size_t(len(code)), *arguments, None)
        else:
            code = file.read_bytes()
            call("nvFatbinAddCubin", handle, code, ctypes.c_size_t(len(code)), *arguments)
    size = ctypes.c_size_t()
    call("nvFatbinSize", handle, ctypes.byref(size))
    result = ctypes.create_string_buffer(size.value)
    call("nvFatbinGet", handle, result)
    call("nvFatbinDestroy", ctypes.byref(handle))
    return result.raw


def images_in(data: bytes) -> Iterator[str]:
    """Yields the profiles of all images in a file's bytes."""
    at = data.find(struct.pack("<I", MAGIC))
    while at >= 0:
        _, _, header, size = FILE.unpack_from(data, at)
        end = at + header + size
        at += header
        while at < end:
            kind, _, header, size, number = IMAGE.unpack_from(data, at)
            yield f"{KINDS.get(kind, kind)}_{number}"
            at += header + size
        at = data.find(struct.pack("<I", MAGIC), end)


if __name__ == "__main__":
    main()
