"""BytePS: workers push to and pull from servers; bpslaunch or ooodist.launch starts them."""

import atexit
import os

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf

from ooodist.compat import byteps
from ooodist.engines.base import PIECE_SIZES, SMALL_INTEGERS, Engine, as_new_value, keep
from ooodist.engines.devices import show_own_gpu_alone, use_own_device
from ooodist.engines.local_rank import LocalRank
from ooodist.engines.timeout import abort_after_error, ending_after
from ooodist.errors import UserError

MOST_NAMES = 1 << 16  # that BytePS can number; positions come after all numbers
LEAVE_SECONDS = 20.0  # timeout from the first rank that leaves the job to the last


class BytepsEngine(Engine):
    """Sums with BytePS's push_pull.

    Ranks know a name by its number, in the order in which names are first used, so all ranks must
    trace the same exchanges in the same order. Without a position the number is the priority, too:
    the first is the most urgent. On a server each name costs twice the size of the largest tensor
    that it has stood for, until the end of the job; on the workers it costs nothing, because our
    build (patches/) sends tensors from where they are. When a rank or server dies, our build ends
    the others when its heartbeat has been missing for OOODIST_HEARTBEAT_SECONDS (heartbeat.py).

    Built for GPUs, BytePS may also run the ranks of a host as one worker (BYTEPS_LOCAL_SIZE): they
    add up by NCCL, and one of them pushes the sum.
    """

    name = "byteps"
    names_cost_memory = True
    wire_dtypes = {tf.bfloat16: tf.float32, **SMALL_INTEGERS}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        if not byteps.has_places():
            raise UserError(
                "engine byteps: the BytePS that is installed was built by another version of "
                "ooodist; run ooodist-engines byteps"
            )
        self._find_place()
        if byteps.has_nccl():
            self._leave_byteps_one_gpu()
        use_own_device(self.local_rank, self.local_size)
        bps.init(lazy=False)  # lazily, it would wait for the others in the first exchange
        atexit.unregister(bps.shutdown)
        atexit.register(self._close_at_exit)
        self.rank, self.size = bps.rank(), bps.size()
        # As the library reads them; a credit of 0 means any number.
        self.partition_bytes = int(os.environ.get("BYTEPS_PARTITION_BYTES", 4096000))
        self.pieces_in_flight = int(os.environ.get("BYTEPS_SCHEDULING_CREDIT", 0)) or None
        # These names get the first numbers, so that ranks can compare what they have traced before
        # a difference can mix up anything.
        for size in PIECE_SIZES:
            self._sum_array(np.zeros(size, np.int32))

    def _find_place(self) -> None:
        """Sets the local rank and size."""
        of_worker = int(os.environ.get("BYTEPS_LOCAL_SIZE", 1))
        if of_worker > 1:  # bpslaunch, with a process for each GPU
            if not byteps.has_nccl():
                raise UserError(
                    f"BYTEPS_LOCAL_SIZE={of_worker}: the BytePS that is installed has no NCCL, and "
                    "runs one process for each DMLC_WORKER_ID; give every process its own "
                    "DMLC_WORKER_ID and BYTEPS_LOCAL_SIZE=1, as ooodist.launch does, or build it "
                    "for GPUs: ooodist-engines --gpu byteps"
                )
            self.local_rank, self.local_size = int(os.environ["BYTEPS_LOCAL_RANK"]), of_worker
        # Else one process is one "machine" to BytePS, so it does not know who shares the host.
        elif "OOODIST_LOCAL_RANK" in os.environ:
            self.local_rank = int(os.environ["OOODIST_LOCAL_RANK"])
            self.local_size = int(os.environ["OOODIST_LOCAL_SIZE"])
        elif os.environ.get("DMLC_NUM_WORKER", "1") != "1":  # started by hand, or by bpslaunch
            scheduler = (os.environ["DMLC_PS_ROOT_URI"], os.environ["DMLC_PS_ROOT_PORT"])
            self._place = LocalRank(":".join(scheduler))
            self.local_rank, self.local_size = self._place.rank, None

    def _leave_byteps_one_gpu(self) -> None:
        """Makes BytePS use the GPU that TensorFlow will use.

        It takes that of its own local rank: always the first, where it knows no others on the host.
        """
        if os.environ.get("BYTEPS_LOCAL_SIZE", "1") == "1":
            show_own_gpu_alone(self.local_rank, self.local_size)
        if not tf.config.list_physical_devices("GPU"):
            named = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            raise UserError(
                "engine byteps: the BytePS that is installed was built for GPUs, and TensorFlow "
                f"sees none here (CUDA_VISIBLE_DEVICES: {named}); to train on CPUs, run "
                "ooodist-engines --cpu byteps"
            )

    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        after_all_numbers = -1 if position is None else MOST_NAMES + position
        result = byteps.push_pull_sum(as_new_value(tensor), key, after_all_numbers)
        keep(result.op)
        return result

    def _close(self) -> None:
        atexit.unregister(self._close_at_exit)
        error = (
            f"engine byteps: not all workers ended within {LEAVE_SECONDS:g} s of each other, as "
            "they must; look for errors of the others, or call ooodist.shutdown on all at the end"
        )
        with ending_after(LEAVE_SECONDS, error):
            bps.shutdown()

    def _close_at_exit(self) -> None:
        """Leaves the job at exit, or aborts after an error, since BytePS waits for all workers."""
        abort_after_error()
        self._close()
