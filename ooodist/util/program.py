"""What the programs of ooodist have in common: exit codes, errors in one line, options."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ooodist.errors import UserError

CRASH_CODE = 1
USER_ERROR_CODE = 2
INTERRUPTED_CODE = 130


def print_error(error: object) -> None:
    """Prints what was wrong, in one write, or the lines of two ranks get mixed up."""
    sys.stderr.write(f"ooodist: error: {error}\n")
    sys.stderr.flush()


def refused(error: UserError) -> int:
    """Prints what was wrong and returns the exit code of a program that ends for it."""
    print_error(error)
    return USER_ERROR_CODE


class Parser(argparse.ArgumentParser):
    """A parser of options whose errors are UserErrors; the help shows examples as they are."""

    def __init__(self, **settings: Any) -> None:
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=kind, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what there is")
