"""Notices a process that is stopped (SIGSTOP, Ctrl-Z), for which the rest of its job waits in vain.

It does not end, so nobody else notices before an engine's timeout; and what then ends is a victim.
Whoever has started the process kills it after a while, and says why: the launcher or a runner.
"""

import time
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 0.5
STOPPED_SECONDS = 5.0  # it may go on until then; less than any engine waits
HOW = "(by SIGSTOP or Ctrl-Z)"


def state(process: int) -> str:
    """The kernel's letter for the state of a process, "" if there is none.

    T is stopped by a signal, t by a debugger, Z is a zombie.
    """
    with suppress(OSError):
        # "id (name) state …": the name may contain anything.
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return status.rpartition(") ")[2][0]
    return ""


def wait_until_stopped(process: int) -> None:
    """Waits until the process has been stopped by a signal for ``STOPPED_SECONDS``, or forever.

    Looks are counted, not seconds: where this process was stopped as well, its own time did not
    pass.
    """
    looks = 0
    while looks * LOOK_SECONDS < STOPPED_SECONDS:
        time.sleep(LOOK_SECONDS)
        looks = looks + 1 if state(process) == "T" else 0


def message(name: str, process: int) -> str:
    """What to say of a process that is killed for it."""
    return (
        f"{name} (process {process}) has been stopped {HOW} for {STOPPED_SECONDS:g} s, and the "
        "others wait for it: killing it. Resume what you stop within that time, by SIGCONT; a "
        "debugger may stop it for longer"
    )
