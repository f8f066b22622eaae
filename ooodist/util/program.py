"""Common parts of ooodist's programs: exit codes, one-line errors and options."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ooodist.errors import UserError

CRASH_CODE = 1
USER_ERROR_CODE = 2
INTERRUPTED_CODE = 130
TERMINATED_CODE = 143  # 128 + SIGTERM


def print_error(error: object) -> None:
    """Prints an error in a single write, so that the lines of two ranks do not mix."""
    sys.stderr.write(f"ooodist: error: {error}\n")
    sys.stderr.flush()


def refused(error: UserError) -> int:
    """Prints a user error and returns the exit code for it."""
    print_error(error)
    return USER_ERROR_CODE


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError and keeps the layout of examples in its help."""

    def __init__(self, **settings: Any) -> None:
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=kind, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what there is")
