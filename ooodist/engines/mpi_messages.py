"""Messages of MPI, of any length, for which no core is kept busy.

TensorFlow is not imported, as what emulates a pipeline does without it.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from ooodist.util.patience import Patience, moved

# Open MPI keeps a core busy while it waits; a waiting rank leaves it to those that compute.
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 2e-3  # seconds between two polls
# Of a message: each that has arrived is progress. (Many versions of MPI allow up to 2 GB.)
MOST_BYTES = 1 << 24


def messages_of(array: np.ndarray) -> list[np.ndarray]:
    """The memory of a contiguous array as messages of bytes; none if it is empty."""
    content = array.reshape(-1).view(np.uint8)
    return [content[at : at + MOST_BYTES] for at in range(0, content.size, MOST_BYTES)]


def wait(request: MPI.Request, what: str = "", patience: Patience | None = None) -> None:
    """Waits until the request is complete, without keeping the core busy.

    Args:
        request: a request for something that all ranks do together.
        what: what they do, for the message.
        patience: for how long; None: without end.

    Raises:
        Stalled: it takes longer than that.
    """
    pause = SHORTEST_PAUSE
    began = time.monotonic()
    while not request.Test():
        if patience is not None:
            where = f"rank {MPI.COMM_WORLD.rank} waits at {what}"
            patience.check(began, where, "not all ranks have come to it")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    moved()


def reduced(ranks: MPI.Comm, array: np.ndarray, operation: MPI.Op) -> np.ndarray:
    """The arrays of all ranks of a communicator combined, element by element; all call it."""
    result = np.empty_like(array)
    wait(ranks.Iallreduce(array, result, op=operation))
    return result
