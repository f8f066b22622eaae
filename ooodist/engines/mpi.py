"""The MPI engine, for pipelines; their point-to-point messages are in :mod:`ooodist.pipeline`."""

from __future__ import annotations

import atexit

import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.engines.communicator import Communicator
from ooodist.engines.devices import use_own_device
from ooodist.engines.timeout import abort_after_error
from ooodist.errors import UserError


class MpiEngine(Engine):
    """Connects all ranks of ``mpirun``; exchanges arrays only, and nothing in a traced graph."""

    name = "mpi"
    world: Communicator

    def __init__(self) -> None:
        super().__init__()
        self.world = Communicator.of_all()
        self.rank, self.size = self.world.rank, self.world.size
        host = self.world.of_host()
        self.local_rank, self.local_size = host.rank, host.size
        host.free()
        use_own_device(self.local_rank, self.local_size)
        atexit.register(abort_after_error)  # mpi4py would wait for all ranks

    def _sum_array(self, array: np.ndarray) -> np.ndarray:
        return self.world.summed(array)

    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        raise UserError(
            "a step of a pipeline calls ooodist.allreduce or ooodist.allgather, but its ranks "
            "compute different things; call them outside of tf.function, or train with engine "
            "horovod, byteps or collective"
        )

    def _close(self) -> None:
        self.world.leave()
        atexit.unregister(abort_after_error)
