"""The Horovod engine; horovodrun, mpirun or ooodist.launch start its processes."""

import horovod.tensorflow as hvd
import tensorflow as tf

from ooodist.compat.horovod import all_reduce_sum
from ooodist.engines.base import Engine, Scattered, as_new_value, keep
from ooodist.engines.devices import use_own_device
from ooodist.engines.priority import let_come_first
from ooodist.util.cores import threads

# Horovod's key is the last part of the op's name. In a name scope of its own the op gets exactly
# the name it asks for, even if the graph has that name elsewhere.
SCOPE = "exchange"


class HorovodEngine(Engine):
    """Sums, scatters, gathers and broadcasts with Horovod (over MPI, gloo or NCCL, as built).

    Horovod fuses tensors that are ready at the same time into one transfer, in any order. When a
    rank dies, the running exchange fails on all others.
    """

    name = "horovod"
    wires = ("float16",)
    wire_dtypes = {  # noqa: RUF012
        tf.bfloat16: tf.float32,
        tf.int16: tf.int32,
        tf.uint16: tf.int32,
        tf.uint32: tf.int64,
    }

    def __init__(self) -> None:
        super().__init__()
        before = threads()
        hvd.init()
        if not hvd.mpi_enabled():  # MPI's threads poll: they must not have priority
            let_come_first(threads() - before)
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        use_own_device(self.local_rank, self.local_size)

    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        with tf.name_scope(SCOPE):
            return _kept(all_reduce_sum(as_new_value(tensor), key), key)

    def _scatter(self, rows: tf.Tensor, key: str) -> Scattered:
        sent = as_new_value(rows)
        with tf.name_scope(SCOPE):
            own = hvd.reducescatter(sent, op=hvd.Sum, name=key, ignore_name_scope=True)
            own = _kept(own, key)
        return Scattered(tf.reshape(own, [rows.shape[1]]), own.op, sent.op)

    def _gather(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        with tf.name_scope(SCOPE):
            gathered = hvd.allgather(as_new_value(tensor), name=key, ignore_name_scope=True)
            return _kept(gathered, key)

    def _broadcast(self, tensor: tf.Tensor, key: str, root: int) -> tf.Tensor:
        with tf.name_scope(SCOPE):
            sent = hvd.broadcast(as_new_value(tensor), root, name=key, ignore_name_scope=True)
            return _kept(sent, key)

    def _close(self) -> None:
        hvd.shutdown()


def _kept(result: tf.Tensor, key: str) -> tf.Tensor:
    """The result of an exchange that runs whether it is used or not."""
    assert result.op.name.split("/")[-1] == key, (result.op.name, key)
    keep(result.op)
    return result
