"""Ranks that exchange arrays over MPI. No other module imports mpi4py.

To import it starts MPI, so only the MPI engine and the emulation of a pipeline do, when they start.
TensorFlow is not imported, as the emulation does without it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from ooodist.engines.arrays import ArrayExchange, messages_of
from ooodist.errors import UserError
from ooodist.util.patience import Patience, moved

# Open MPI keeps a core busy while it waits; a waiting rank leaves it to those that compute.
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 2e-3  # seconds between two polls
SUM_TAG = 32_767  # of sums of two; others on their communicators take small ones
PIECE = 1 << 20  # elements of a sum that is waited for; each piece is progress


class Transfer:
    """Arrays in transit, which must not be changed until they are there.

    Args:
        requests: MPI's.
        memory: the arrays, which it keeps; mpi4py does not keep those of collective requests.
        finish: called when all of them are complete; None: nothing is left to do.

    Attributes:
        requests: as given.
    """

    def __init__(
        self, requests: list[MPI.Request], memory: Any, finish: Callable[[], None] | None = None
    ) -> None:
        self.requests = requests
        self._memory = memory
        self._finish = finish

    def is_complete(self) -> bool:
        """Whether all are there; MPI makes progress meanwhile."""
        if not MPI.Request.Testall(self.requests):
            return False
        self._end()
        return True

    def wait(self, what: str = "", patience: Patience | None = None) -> None:
        """Waits until all are there, without keeping the core busy.

        Args:
            what: what the ranks do together, for the message.
            patience: for how long, for each message; None: without end.

        Raises:
            Stalled: it takes longer than that.
        """
        for request in self.requests:
            pause = SHORTEST_PAUSE
            began = time.monotonic()
            while not request.Test():
                if patience is not None:
                    where = f"rank {MPI.COMM_WORLD.rank} waits at {what}"
                    patience.check(began, where, "not all ranks have come to it")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            moved()
        self._end()

    def wait_awake(self) -> None:
        """Waits without a pause, which keeps the core busy: for what is timed."""
        MPI.Request.Waitall(self.requests)
        self._end()

    def _end(self) -> None:
        finish, self._finish, self._memory = self._finish, None, None
        if finish is not None:
            finish()


class Communicator(ArrayExchange):
    """Some ranks of ``mpirun``, numbered from 0.

    What :class:`ArrayExchange` has ends on all of them together. What returns a :class:`Transfer`
    only begins; all ranks begin their sums and broadcasts in the same order.

    Args:
        comm: MPI's communicator of these ranks.

    Attributes:
        comm: as given.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size

    @classmethod
    def of_all(cls) -> Communicator:
        """All ranks of the job; all call it."""
        return cls(MPI.COMM_WORLD.Dup())

    def duplicate(self) -> Communicator:
        """The same ranks, with messages that do not meet those of this one; all call it."""
        return Communicator(self.comm.Dup())

    def split(self, color: int) -> Communicator:
        """Those that give the same number, in this order; all call it."""
        return Communicator(self.comm.Split(color))

    def of_host(self) -> Communicator:
        """Those on this host; all call it."""
        return Communicator(self.comm.Split_type(MPI.COMM_TYPE_SHARED))

    def free(self) -> None:
        """Frees what MPI keeps for it; all call it."""
        self.comm.Free()

    def leave(self) -> None:
        """Leaves the job, after the last exchange of all ranks."""
        MPI.Finalize()

    def abort(self, code: int) -> None:
        """Ends all ranks of the job with this exit code."""
        self.comm.Abort(code)

    # What this MPI can do

    @property
    def largest_tag(self) -> int:
        """The largest tag that it allows; MPI guarantees at least 32,767."""
        return cast(int, MPI.COMM_WORLD.Get_attr(MPI.TAG_UB))

    def check_threads(self) -> None:
        """Raises UserError unless several threads may exchange at the same time."""
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UserError(
                "this MPI was started without support for several threads (MPI_THREAD_MULTIPLE), "
                "which messages beside a computation need; use an MPI that has it, as Debian's "
                "Open MPI, and leave mpi4py.rc.thread_level as it is"
            )

    def takes_gpu_memory(self) -> bool:
        """Whether it reads and writes the memory of GPUs ("CUDA-aware")."""
        library = ctypes.CDLL(MPI.__file__)  # also finds symbols of the MPI that mpi4py has loaded
        if hasattr(library, "MPIX_Query_cuda_support"):  # Open MPI
            return bool(library.MPIX_Query_cuda_support())
        if hasattr(library, "MPIX_GPU_query_support"):  # MPICH; 0 is CUDA
            answer = ctypes.c_int(0)
            library.MPIX_GPU_query_support(0, ctypes.byref(answer))
            return bool(answer.value)
        return False

    # Exchanges

    def send(self, arrays: Sequence[Any], peer: int, tag: int = 0) -> Transfer:
        """Begins to send arrays, or other memory that MPI takes, to a rank, a message each.

        With the same two ranks and tag, messages keep their order.
        """
        return Transfer([self.comm.Isend([array, MPI.BYTE], peer, tag) for array in arrays], arrays)

    def receive(self, arrays: Sequence[Any], peer: int, tag: int = 0) -> Transfer:
        """Begins to receive what a rank sends into arrays, or other memory that MPI takes."""
        return Transfer([self.comm.Irecv([array, MPI.BYTE], peer, tag) for array in arrays], arrays)

    def begin_broadcast(self, array: np.ndarray, root: int) -> Transfer:
        """Begins to send a contiguous array of one rank to all others, into theirs."""
        return Transfer([self.comm.Ibcast(part, root=root) for part in messages_of(array)], array)

    def begin_sum(self, array: np.ndarray, root: int | None = None) -> Transfer:
        """Begins to sum a contiguous array over the ranks, in place.

        Args:
            array: this rank's.
            root: the only rank that gets the sum; None: all do. MPI may add in another order then.
        """
        if self.size == 2:
            return self._begin_sum_of_two(array, root)
        if root is None:
            return Transfer([self.comm.Iallreduce(MPI.IN_PLACE, array, op=MPI.SUM)], array)
        if root == self.rank:
            return Transfer([self.comm.Ireduce(MPI.IN_PLACE, array, op=MPI.SUM, root=root)], array)
        return Transfer([self.comm.Ireduce(array, None, op=MPI.SUM, root=root)], array)

    def _begin_sum_of_two(self, array: np.ndarray, root: int | None) -> Transfer:
        """As :meth:`begin_sum`: a rank that gets the sum is sent the other's array, and adds.

        The bytes are those of MPI's own sums, which take longer. Where both get it, Open MPI sends
        one way at a time. With its Ireduce, a step took four times as long.
        """
        peer = 1 - self.rank
        if root == peer:
            return self.send(messages_of(array), peer, SUM_TAG)
        other = np.empty_like(array)
        received = self.receive(messages_of(other), peer, SUM_TAG)
        sent = self.send(messages_of(array) if root is None else (), peer, SUM_TAG)

        def add() -> None:
            np.add(array, other, out=array)

        return Transfer([*received.requests, *sent.requests], (array, other), add)

    def summed(self, array: np.ndarray) -> np.ndarray:
        """The sum over the ranks of a 1-D array, whose length is the same on all."""
        result = np.empty_like(array)
        for start in range(0, array.size, PIECE):
            pieces = array[start : start + PIECE], result[start : start + PIECE]
            Transfer([self.comm.Iallreduce(*pieces, op=MPI.SUM)], pieces).wait()
        return result

    _sum_array = summed
