"""The collective engine: TensorFlow's own collective ops between processes; nothing to build."""

import logging
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ooodist.compat.tensorflow_runtime import set_heartbeat
from ooodist.engines.base import SMALL_INTEGERS, Engine, Scattered, keep
from ooodist.engines.devices import use_own_device
from ooodist.engines.heartbeat import heartbeat_seconds
from ooodist.engines.kinds.collective import Collective, cluster
from ooodist.errors import UserError
from ooodist.util.digest import digest

_log = logging.getLogger("ooodist")

GROUP_KEY = 1 << 20  # tf.distribute counts its own groups from 1
# The ring sends a large tensor in up to this many parts at a time: 64 MB in 82 ms instead of
# 219 ms in one part (2 ranks on 2 cores). Tensors below 4 MB a rank are sent in one part.
MAX_PARTS = 16


class CollectiveEngine(Engine):
    """Sums, scatters, gathers and broadcasts with TensorFlow's CollectiveReduceV2 and its like.

    On CPUs these are rings, and trees, through gRPC, on GPUs they are NCCL's.

    TF_CONFIG names the processes. With one process (or none named) it exchanges nothing. When a
    rank dies, the running exchange fails on all others within seconds. So it does when a rank is
    silent for OOODIST_HEARTBEAT_SECONDS (heartbeat.py; TensorFlow's own limit is 10 seconds).

    On CPUs exchanges are independent of each other, in whatever order they start on each rank.
    NCCL needs the same order on all ranks: there they are chained in the order in which they are
    traced, together with the graph's other stateful ops.

    NCCL refuses two ranks on one GPU. To try a job on a host with one, OOODIST_COLLECTIVE=ring
    makes rings on GPUs too, which are slower.
    """

    name = "collective"
    wire_dtypes = SMALL_INTEGERS

    def __init__(self) -> None:
        super().__init__()
        addresses, self.rank = cluster(os.environ) or (["localhost"], 0)
        self.size = len(addresses)
        hosts = [address.rsplit(":", 1)[0] for address in addresses]
        self.local_rank = hosts[: self.rank].count(hosts[self.rank])
        self.local_size = hosts.count(hosts[self.rank])
        use_own_device(self.local_rank, self.local_size)
        if self.size > 1 and self.rank == 0 and "OOODIST_SIZE" not in os.environ:
            _log.warning(  # ooodist.launch closes its network, and says so
                "engine collective: %s. Use it in a network that is closed to others; or take "
                "horovod or byteps",
                Collective.danger,
            )
        self._on_gpu = bool(tf.config.get_visible_devices("GPU"))
        self._library = _library(self._on_gpu)
        if self._on_gpu:
            self.max_credit = 1
            # TensorFlow keeps int32 in the host's memory, and refuses to sum it on a GPU.
            self.wire_dtypes = dict.fromkeys((*SMALL_INTEGERS, tf.int32), tf.int64)
        self._numbers: dict[int, str] = {}
        # It must live as long as the process, but is never the current strategy.
        self._strategy = _connect_all_workers() if self.size > 1 else None

    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        return self._exchange(
            tf.raw_ops.CollectiveReduceV2,
            key,
            input=tensor,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            max_subdivs_per_device=MAX_PARTS,
        )

    def _scatter(self, rows: tf.Tensor, key: str) -> Scattered:
        # TensorFlow has CollectiveReduceScatterV2 for NCCL alone. As many bytes are sent like this.
        op = tf.raw_ops.CollectiveAllToAllV2
        arrived = self._exchange(op, key, input=rows, ordering_token=[])
        arrived.set_shape(rows.shape)
        return Scattered(tf.add_n(tf.unstack(arrived)), arrived.op, rows.op)

    def _gather(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        op = tf.raw_ops.CollectiveGatherV2
        return self._exchange(op, key, input=tensor, ordering_token=[])

    def _broadcast(self, tensor: tf.Tensor, key: str, root: int) -> tf.Tensor:
        if self.rank == root:
            return self._exchange(tf.raw_ops.CollectiveBcastSendV2, key, input=tensor)
        op, shape = tf.raw_ops.CollectiveBcastRecvV2, tensor.shape.as_list()
        result = self._exchange(op, key, T=tensor.dtype, shape=shape)
        result.set_shape(shape)
        return result

    def _exchange(self, make: Callable[..., tf.Tensor], key: str, **given: Any) -> tf.Tensor:
        """Adds a collective op to the graph."""
        result = make(
            group_size=self.size,
            group_key=GROUP_KEY,
            instance_key=self._instance_key(key),
            communication_hint=self._library,
            name=key,
            **given,
        )
        if not self._on_gpu:
            keep(result.op)
        return result

    def _instance_key(self, key: str) -> int:
        """A number that identifies the exchange on all ranks, whenever each traces it."""
        number = int.from_bytes(digest(key)[:4], "big") >> 1
        while self._numbers.setdefault(number, key) != key:
            number = (number + 1) % (1 << 31)
        return number

    def _close(self) -> None:
        pass  # TensorFlow's server lives as long as the process


def _library(on_gpu: bool) -> str:
    """What carries out the exchanges: "nccl" or "ring".

    Raises:
        UserError: OOODIST_COLLECTIVE names something else, or NCCL without a GPU.
    """
    allowed = ("nccl", "ring") if on_gpu else ("ring",)
    chosen = os.environ.get("OOODIST_COLLECTIVE", allowed[0])
    if chosen not in allowed:
        raise UserError(
            f"OOODIST_COLLECTIVE={chosen}: on {'GPUs' if on_gpu else 'CPUs'} it can be "
            f"{' or '.join(allowed)}; leave it out for {allowed[0]}"
        )
    return chosen


def _connect_all_workers() -> tf.distribute.MultiWorkerMirroredStrategy:
    """Starts this process's server and returns when those of all other processes run."""
    addresses, rank = cluster(os.environ) or ([], 0)
    # TensorFlow sends a sign of life, and expects its answer, each half of its limit: of so long a
    # silence it may have heard nothing for half as long before.
    set_heartbeat(len(addresses), 2 * heartbeat_seconds(os.environ))
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.UnknownError as error:
        if "start gRPC server" not in str(error):
            raise
        port = addresses[rank].rpartition(":")[2]
        raise UserError(
            f"engine collective: rank {rank} cannot listen on port {port}, which TF_CONFIG gives "
            f"it with the address {addresses[rank]}; end the program that uses the port, or give "
            "another one"
        ) from error
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise UserError(
            "engine collective: ooodist.init was called after TensorFlow had started; call it "
            "before anything else that uses TensorFlow"
        ) from error
