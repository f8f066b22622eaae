"""For how long the processes of a job do without a sign of life of each other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

from ooodist.engines.kinds import Kind
from ooodist.errors import UserError

# Who is silent for so long has gone: an address that a network has lost comes back after less. The
# launcher's --heartbeat sets it for all processes of a job.
HEARTBEAT = "OOODIST_HEARTBEAT_SECONDS"
DEFAULT_HEARTBEAT, LEAST_HEARTBEAT, MOST_HEARTBEAT = 30, 1, 10**6


def heartbeat_seconds(environ: Mapping[str, str]) -> float:
    """Reads for how long, in seconds.

    Raises:
        UserError: OOODIST_HEARTBEAT_SECONDS is no number of seconds.
    """
    given = environ.get(HEARTBEAT, "")
    with contextlib.suppress(ValueError):
        if LEAST_HEARTBEAT <= float(given or DEFAULT_HEARTBEAT) <= MOST_HEARTBEAT:
            return float(given or DEFAULT_HEARTBEAT)
    raise UserError(
        f"{HEARTBEAT} is {given!r}; it must be a number of seconds, {LEAST_HEARTBEAT} to "
        f"{MOST_HEARTBEAT}"
    )


def heartbeat_settings(kind: Kind, environ: Mapping[str, str]) -> dict[str, str]:
    """Makes the library's own variable for :func:`heartbeat_seconds`, if it has one.

    Raises:
        UserError: as there.
    """
    seconds = str(math.ceil(heartbeat_seconds(environ)))
    return {} if kind.heartbeat_variable is None else {kind.heartbeat_variable: seconds}
