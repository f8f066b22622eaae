"""The command line that the launchers share."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ooodist.errors import UserError
from ooodist.util.program import USER_ERROR_CODE, print_error

ENGINES = ("collective", "horovod", "byteps", "local")


def new_parser(program: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser with the options that every launcher has, for ``parse``."""
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s -np N --engine ENGINE [options] -- COMMAND ...",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np", dest="num_workers", metavar="N", type=count, required=True, help="number of workers"
    )
    parser.add_argument(
        "--engine", choices=ENGINES, required=True, help="the library that exchanges gradients"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        help="end the job when it has run for so long (default: no limit)",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        type=Path,
        help="also write the output of each process to DIR/0.log, DIR/server-0.log, ...; "
        "TensorFlow's own notes and warnings, but not its errors, then go there alone",
    )
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command after ``--``. Ends the program after wrong use."""
    # Split here and not by argparse: what stands after the first `--` is the command's alone.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    command = arguments[end + 1 :]
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)} (the command to start goes after --)")
    if not command:
        parser.error("no command to start: give it after --, as in: -- python -m ooodist.train ...")
    if options.servers and options.engine != "byteps":
        parser.error(f"--servers is for --engine byteps; {options.engine} has no servers")
    return options, command


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def check_command(command: list[str]) -> None:
    """Raises UserError if there is no such program."""
    if shutil.which(command[0]) is None:
        raise UserError(
            f"command not found: {command[0]}; give a program on PATH, or a path to one, "
            f"for example {sys.executable}"
        )


def log_folder(folder: Path | None) -> Path | None:
    """The folder of ``--log-dir``, made. Raises UserError if nothing can be written there."""
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
    """The exit code of ``launch``, or 2 after a UserError, which is printed."""
    try:
        return launch()
    except UserError as error:
        with suppress(OSError):  # nobody reads any more: that was the error
            print_error(error)
        return USER_ERROR_CODE
