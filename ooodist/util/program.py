"""Common parts of ooodist's programs: exit codes, one-line errors and options."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ooodist.errors import UserError
from ooodist.util.log import FORMAT
from ooodist.util.packages import tensorflow_needed

CRASH_CODE = 1
USER_ERROR_CODE = 2
INTERRUPTED_CODE = 130
TERMINATED_CODE = 143  # 128 + SIGTERM
SECONDS_FOR_THE_FIRST = 10.0  # to start and end; a launcher may wait for 5 s before it kills
# Variables that hold the number of this process in its job: of Open MPI, other MPIs, horovodrun
# (gloo), ooodist's launcher, Slurm.
RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "HOROVOD_RANK",
    "OOODIST_RANK",
    "SLURM_PROCID",
)


def run(main: Callable[[Sequence[str]], int]) -> int:
    """Runs a program with the command line of this process; returns its exit code."""
    logging.basicConfig(format=FORMAT)
    # TensorFlow's C++ logs errors only: what it warns of is also raised as an exception.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with tensorflow_needed():
            return main(sys.argv[1:])
    except UserError as error:
        return refused(error)


def print_error(error: object) -> None:
    """Prints an error in a single write, so that the lines of two ranks do not mix."""
    sys.stderr.write(f"ooodist: error: {error}\n")
    sys.stderr.flush()


def refused(error: UserError) -> int:
    """Prints a user error and returns the exit code for it.

    All ranks of a job find the same mistake before they know each other. So all but the first wait:
    their launcher ends them when that one has ended, unless the mistake is theirs alone.
    """
    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # it is ended without a word
        time.sleep(SECONDS_FOR_THE_FIRST)
    print_error(error)
    return USER_ERROR_CODE


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError and keeps the layout of examples in its help."""

    def __init__(self, **settings: Any) -> None:
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=kind, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what there is")


def refuse_given(options: argparse.Namespace, names: Sequence[str], message: str) -> None:
    """Raises UserError if one of these options was given.

    Args:
        options: what was parsed.
        names: of the options, such as ``--print-config``.
        message: for the error; ``{}`` is where the name of the option stands.
    """
    for name in names:
        if getattr(options, name.removeprefix("--").replace("-", "_")):
            raise UserError(message.format(name))
