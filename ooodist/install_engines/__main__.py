"""``ooodist-engines``, or ``python -m ooodist.install_engines``: see ``--help``."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ooodist.errors import UserError
from ooodist.util import program
from ooodist.util.program import Parser, refused

ENGINES = ("horovod", "byteps", "mpi")
DESCRIPTION = """\
Build Horovod 0.28.1 and BytePS 0.2.5.post15 against the installed TensorFlow, with ooodist's
patches, and install them and mpi4py into the environment of this Python. Each is checked with an
exchange between two processes.

What is built is kept, and used again for the same versions and patches. A build takes two to five
minutes. As root, missing packages of Debian are installed with apt-get; else they are named. Open
MPI is installed as a wheel where apt-get cannot install it.

They get NCCL where the host has a GPU and TensorFlow is built for it. That needs neither CUDA's
compiler nor a driver: what there is of CUDA 12 in wheels, and clang, do."""
EXAMPLES = """\
examples:
  # all three, or some
  ooodist-engines
  ooodist-engines horovod mpi

  # Horovod and BytePS with NCCL, or without, whatever the host has
  ooodist-engines --gpu horovod byteps
  ooodist-engines --cpu horovod byteps

environment:
  OOODIST_WHEEL_CACHE   where to keep what is built ($XDG_CACHE_HOME/ooodist/wheels, and
                        XDG_CACHE_HOME is ~/.cache); logs are in its folder logs

exit code: 0 when all are installed, 2 for a wrong command line, 1 for anything else.
"""


def main(arguments: Sequence[str]) -> int:
    """Becomes the script that does what the command line asks for."""
    try:
        options = _parse(arguments)
        engines = list(dict.fromkeys(options.engines)) or list(ENGINES)
        for name in engines:
            if name not in ENGINES:
                raise UserError(f"unknown engine {name!r}: give {', '.join(ENGINES)}")
        if sys.platform != "linux":
            raise UserError(f"the engines run on Linux only; this is {sys.platform}")
        bash = shutil.which("bash")
        if bash is None:
            raise UserError("there is no bash on PATH, which builds the engines; install it")
    except UserError as error:
        return refused(error)
    script = Path(__file__).with_name("install.sh")
    os.execv(bash, [bash, str(script), sys.executable, options.gpu, *engines])


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="ooodist-engines", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument(
        "engines", metavar="ENGINE", nargs="*", help="horovod, byteps or mpi (default: all)"
    )
    nccl = parser.add_mutually_exclusive_group()
    nccl.add_argument(
        "--gpu", dest="gpu", action="store_const", const="yes", default="auto", help="with NCCL"
    )
    nccl.add_argument("--cpu", dest="gpu", action="store_const", const="no", help="without NCCL")
    return parser.parse_args(arguments)


command = functools.partial(program.run, main)  # ooodist-engines

if __name__ == "__main__":
    sys.exit(command())
