"""Runs a function on one rank: ``python -m ooodist.launcher.function.worker CALL``.

CALL is the file that :func:`ooodist.run` has written; the outcome goes beside it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from ooodist.launcher.function.travel import Outcome, failed, outcome_file, read, write
from ooodist.util.program import CRASH_CODE, RANKS


def main(call: Path) -> int:
    """Calls the function, writes its outcome and returns the exit code."""
    names = ("OOODIST_RANK", *RANKS)
    rank = int(next(os.environ[name] for name in names if name in os.environ))
    file = outcome_file(call, rank)
    try:
        function, args, kwargs = read(call)
        write(file, Outcome(function(*args, **kwargs)))
    except Exception as error:
        when = time.time()
        traceback.print_exc()
        write(file, failed(error, when))
        _end_at_once()
    engines = sys.modules.get("ooodist.engines")
    if engines is not None:
        engines.shutdown()
    return 0


def _end_at_once() -> None:
    """Ends the process without waiting for other ranks, which may never come."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CRASH_CODE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
