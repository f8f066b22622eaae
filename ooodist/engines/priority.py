"""Sets the priority of the threads that send and receive."""

from __future__ import annotations

import logging
import os

from ooodist.engines.kinds.kind import NICENESS
from ooodist.errors import UserError

_log = logging.getLogger("ooodist")


def let_come_first(those: set[int], usual: int | None = None) -> None:
    """Raises the priority of threads, if the job asks for it and the system allows it.

    They do little, but each exchange waits for them, and where all cores compute they wait for a
    core.

    Args:
        those: ids of threads of this process.
        usual: their niceness if the variable ``OOODIST_EXCHANGE_NICENESS`` is not set; None: it
            stays as it is.

    Raises:
        UserError: the variable ``OOODIST_EXCHANGE_NICENESS`` is set, but is not a number.
    """
    niceness = os.environ.get(NICENESS, usual)
    if niceness is None:
        return
    try:
        value = int(niceness)
    except ValueError:
        raise UserError(f"{NICENESS} is {niceness!r}; it must be a number, -20 to 19") from None
    for thread in those:
        try:
            os.setpriority(os.PRIO_PROCESS, thread, value)
        except PermissionError:
            _log.info("the engine's threads keep their priority: another takes CAP_SYS_NICE")
            return
        except ProcessLookupError:  # the thread has ended in the meantime
            continue
