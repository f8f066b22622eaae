"""Says now and then that something which takes long is still under way."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from ooodist.report.search_line import LINE_SECONDS


@contextlib.contextmanager
def still_running(what: str) -> Iterator[None]:
    """Writes a line to standard error every ten seconds while this block runs.

    Args:
        what: what the block does, as "measuring the layers".
    """
    ended, start = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(LINE_SECONDS):
            sys.stderr.write(f"ooodist: {what}: {time.monotonic() - start:.0f} s so far\n")
            sys.stderr.flush()

    thread = threading.Thread(target=tell, name="still-running", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
