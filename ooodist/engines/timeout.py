"""Ends a process that would otherwise wait forever."""

import contextlib
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from ooodist.util.program import CRASH_CODE, print_error

STANDARD_ERROR = 2  # the descriptor


def abort(code: int) -> NoReturn:
    """Ends this process at once: no waiting for other ranks, no clean-up that could hang.

    The other ranks fail in their next exchange (byteps: when the heartbeat of this one has been
    missing for some seconds).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the stream or its reader is gone
            stream.flush()
    logging.shutdown()
    os._exit(code)


def abort_after_error() -> None:
    """Aborts if an exception that nobody caught ends this process; to be called at its exit.

    For libraries that wait at exit until all ranks leave: the others wait for this one meanwhile.
    Not after ``sys.exit``, as Python does not tell which code it is given.
    """
    if getattr(sys, "last_value", None) is not None:
        abort(CRASH_CODE)


@contextlib.contextmanager
def ending_after(seconds: float, error: str, *, shows_stacks: bool = True) -> Iterator[None]:
    """Ends the process with ``error`` and exit code 1 if the body takes longer than ``seconds``.

    Args:
        seconds: the limit.
        error: the message.
        shows_stacks: and where the process was, also while the body lets no Python thread run.
            For this Python has a single timer, which the program may use itself.
    """

    def give_up() -> None:
        print_error(error)
        abort(CRASH_CODE)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    if shows_stacks:
        # TensorFlow connects without letting other Python threads run; this timer needs no Python,
        # and shows in which function the process was. It writes to standard error itself, because
        # sys.stderr of a notebook is no file.
        faulthandler.dump_traceback_later(seconds + 1, exit=True, file=STANDARD_ERROR)
    try:
        yield
    finally:
        timer.cancel()
        if shows_stacks:
            faulthandler.cancel_dump_traceback_later()
