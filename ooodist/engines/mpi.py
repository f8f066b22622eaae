"""The MPI engine, for pipelines; their point-to-point messages are in :mod:`ooodist.pipeline`."""

from __future__ import annotations

import math
import time

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from ooodist.engines.base import Engine
from ooodist.engines.gpu import use_own_gpu
from ooodist.errors import UserError

# Open MPI keeps a core busy while it waits; a waiting rank leaves it to those that compute.
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 2e-3  # seconds between two polls
MOST_BYTES = 1 << 30  # of a message, as many versions of MPI count bytes with 32 bits


class MpiEngine(Engine):
    """Connects all ranks of ``mpirun``; exchanges arrays only, and nothing in a traced graph.

    Attributes:
        world: communicator of these ranks, for code that exchanges more than the engine does.
    """

    name = "mpi"

    def __init__(self) -> None:
        super().__init__()
        self.world = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.world.rank, self.world.size
        host = self.world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = host.rank, host.size
        host.Free()
        use_own_gpu(self.local_rank, self.local_size)

    def _sum_array(self, array: np.ndarray) -> np.ndarray:
        result = np.empty_like(array)
        wait(self.world.Iallreduce(array, result, op=MPI.SUM))
        return result

    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        raise AssertionError("pipelines add up outside of the graph")

    def _close(self) -> None:
        MPI.Finalize()


def messages_of(array: np.ndarray) -> list[np.ndarray]:
    """Returns the memory of a contiguous array as messages of bytes; none if it is empty."""
    content = array.reshape(-1).view(np.uint8)
    return [content[at : at + MOST_BYTES] for at in range(0, content.size, MOST_BYTES)]


def wait(request: MPI.Request, what: str = "", limit: float = math.inf) -> None:
    """Waits until the request is complete, without keeping the core busy.

    Args:
        request: a request for something that all ranks do together.
        what: what they do, for the message.
        limit: timeout in seconds.

    Raises:
        UserError: it takes longer than ``limit``.
    """
    pause = SHORTEST_PAUSE
    began = time.monotonic()
    while not request.Test():
        waited = time.monotonic() - began
        if waited > limit:
            raise UserError(
                f"rank {MPI.COMM_WORLD.rank} waits at {what} since {waited:.0f} s: not all ranks "
                "have come to it; one may have died or be stuck. If a step may take that long, "
                f"raise timeout ({limit:g} s)"
            )
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
