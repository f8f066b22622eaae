"""Horovod: processes started by horovodrun, mpirun or launch/local.py."""

import logging
import os

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from ooodist.engines.base import Engine, as_new_value, keep
from ooodist.engines.gpu import use_own_gpu
from ooodist.engines.settings import NICENESS
from ooodist.errors import UserError

_log = logging.getLogger("ooodist")


class HorovodEngine(Engine):
    """Sums with Horovod's all-reduce (MPI, gloo or NCCL, as Horovod was built and started).

    What is ready at the same time Horovod joins into one transfer, in any order. A rank that dies
    ends in an error of the running exchange on all others.
    """

    name = "horovod"
    wire_dtypes = {  # noqa: RUF012
        tf.bfloat16: tf.float32,
        tf.int16: tf.int32,
        tf.uint16: tf.int32,
        tf.uint32: tf.int64,
    }

    def __init__(self) -> None:
        super().__init__()
        before = _threads()
        hvd.init()
        if NICENESS in os.environ and not hvd.mpi_enabled():  # MPI's threads poll: they must not
            _set_niceness(_threads() - before, os.environ[NICENESS])
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        use_own_gpu(self.local_rank, self.local_size)

    def _sum(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        # Horovod's key is the last part of the op's name. In a name scope of its own the op gets
        # exactly the name it asks for, also if that stands elsewhere in the graph.
        with tf.name_scope("exchange"):
            # Not hvd.allreduce, which puts further ops around the exchange.
            result = mpi_ops._allreduce(
                as_new_value(tensor), name=key, op=hvd.Sum, ignore_name_scope=True
            )
        assert result.op.name.split("/")[-1] == key, (result.op.name, key)
        keep(result.op)
        return result

    def _close(self) -> None:
        hvd.shutdown()


def _threads() -> set[int]:
    """The threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def _set_niceness(threads: set[int], niceness: str) -> None:
    """Lets the threads that send and receive run as soon as they can, if the system allows it.

    They do little, but each step of a ring waits for them, and where all cores compute they wait
    for a core: with -10, 91 % of 250 Mbit/s was used beside a computation, without it 84 %.
    """
    try:
        value = int(niceness)
    except ValueError:
        raise UserError(f"{NICENESS} is {niceness!r}; it must be a number, -20 to 19") from None
    for thread in threads:
        try:
            os.setpriority(os.PRIO_PROCESS, thread, value)
        except PermissionError:
            _log.info("Horovod's threads keep their priority: another takes CAP_SYS_NICE")
            return
        except ProcessLookupError:  # it has ended meanwhile
            continue
