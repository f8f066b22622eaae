"""The command line that the launchers share."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ooodist.engines.heartbeat import (
    DEFAULT_HEARTBEAT,
    HEARTBEAT,
    LEAST_HEARTBEAT,
    MOST_HEARTBEAT,
    heartbeat_seconds,
)
from ooodist.engines.kinds import kinds, launched_as
from ooodist.engines.kinds.collective import Collective
from ooodist.errors import UserError
from ooodist.util.packages import check_tensorflow
from ooodist.util.program import USER_ERROR_CODE, print_error


def engines() -> list[str]:
    """The engines that the launcher starts, and their names where ``mpirun`` does it."""
    every = kinds().values()
    ways = [way for kind in every for way in kind.by_mpirun]
    return [*(kind.name for kind in every if kind.starter), *ways]


def new_parser(
    program: str, description: str, examples: str, usage: str, names: Sequence[str]
) -> argparse.ArgumentParser:
    """Makes a parser with the options that all launchers share, for ``parse``.

    Args:
        program: how it is called.
        description: what it does.
        examples: the end of its help.
        usage: what stands in front of these options.
        names: of the engines that it starts.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"{usage} [--engine ENGINE] [options] [--] COMMAND ...",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--engine",
        choices=names,
        default=Collective.name,
        help="the library that exchanges gradients (default: %(default)s, TensorFlow's own)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        help="end the job when it has run for so long (default: no limit)",
    )
    parser.add_argument(
        "--heartbeat",
        metavar="SECONDS",
        type=_heartbeat,
        help="end the job when a process or host has not been heard of for so long, with every "
        f"engine (default: {HEARTBEAT}, else {DEFAULT_HEARTBEAT})",
    )
    parser.add_argument(
        "--log-dir",
        "--output",
        metavar="DIR",
        type=Path,
        help="also write the output of each process to DIR/0.log, DIR/server-0.log, ...; "
        "TensorFlow's own notes and warnings, but not its errors, then go there alone",
    )
    return parser


def add_number(parser: argparse.ArgumentParser) -> None:
    """Adds the option ``-np``."""
    parser.add_argument(
        "-np", dest="num_workers", metavar="N", type=count, help="number of workers"
    )


def parse(
    parser: argparse.ArgumentParser, arguments: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command after them. Exits the program on wrong use.

    A Python file is a command, too. The programs of this Python come first in PATH.
    """
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    # Split here rather than by argparse: all that follows the first `--` belongs to the command.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    command = [*options.command, *arguments[end:]] if options.command else arguments[end + 1 :]
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)} (the command to start goes after --)")
    if not command:
        parser.error("no command to start: give it after --, as in: -- python -m ooodist.train ...")
    if command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        command = [sys.executable, *command]
    if sys.prefix != sys.base_prefix:  # a virtual environment, activated or not
        programs = str(Path(sys.prefix) / "bin")
        if programs not in (path := os.environ.get("PATH", os.defpath)).split(os.pathsep):
            os.environ["PATH"] = programs + os.pathsep + path
    if getattr(options, "num_workers", 0) is None and not getattr(options, "hosts", None):
        parser.error("the following arguments are required: -np (how many workers)")
    if options.heartbeat is not None:
        os.environ[HEARTBEAT] = f"{options.heartbeat:g}"
    if getattr(options, "servers", None) and not launched_as(options.engine).has_servers:
        parser.error(f"--servers is for --engine byteps; {options.engine} has no servers")
    return options, command


def count(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _heartbeat(text: str) -> float:
    with suppress(UserError):
        return heartbeat_seconds({HEARTBEAT: text})
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of seconds from {LEAST_HEARTBEAT} to {MOST_HEARTBEAT}"
    )


def check_command(command: list[str]) -> None:
    """Raises UserError if there is no such program, or if it is this Python without TensorFlow."""
    program = shutil.which(command[0])
    if program is None:
        raise UserError(
            f"command not found: {command[0]}; give a program on PATH, or a path to one, "
            f"for example {sys.executable}"
        )
    python = Path(sys.executable)
    if Path(program).absolute().parent == python.parent and python.samefile(program):
        check_tensorflow()  # else each worker would say the same


def current_folder() -> Path:
    """The current folder. Raises UserError if it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the current folder was removed; change to one that exists") from error


def log_folder(folder: Path | None) -> Path | None:
    """Makes the folder of ``--log-dir``. Raises UserError if it cannot be written to."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--log-dir {folder}: {error.strerror}; give a folder to write to"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"--log-dir {folder}: no permission to write there; give another folder")
    return folder


def reporting(launch: Callable[[], int]) -> int:
    """The exit code of ``launch``, or 2 after printing a UserError."""
    try:
        return launch()
    except UserError as error:
        with suppress(OSError):  # nobody reads any more: that was the error
            print_error(error)
        return USER_ERROR_CODE
