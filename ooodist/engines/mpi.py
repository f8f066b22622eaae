"""The ranks of ``mpirun``, for pipelines; their messages are in :mod:`ooodist.pipeline`."""

from __future__ import annotations

import math
import time

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from ooodist.engines.base import Engine
from ooodist.engines.gpu import use_own_gpu
from ooodist.errors import UserError

# Open MPI waits with a whole core; a rank that waits leaves it to those that compute.
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 2e-3  # seconds between two looks


class MpiEngine(Engine):
    """All ranks of the job. Nothing is exchanged in a traced graph.

    Attributes:
        world: communicator of these ranks, for whoever exchanges more than the engine does.
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


def wait(request: MPI.Request, what: str = "", limit: float = math.inf) -> None:
    """Returns when the request is complete, and does not use the core meanwhile.

    Args:
        request: of something that all ranks do together.
        what: they do; for people.
        limit: seconds.

    Raises:
        UserError: it takes longer.
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
