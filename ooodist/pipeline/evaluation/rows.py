"""Puts the predictions of several pipelines together on rank 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ooodist.engines.mpi_messages import messages_of, wait
from ooodist.util.patience import Patience


def gather_rows(
    arrays: Sequence[np.ndarray], ranks: MPI.Comm, patience: Patience
) -> list[np.ndarray] | None:
    """The rows of all ranks, one rank's behind the other's, on rank 0; None on others.

    All ranks of the communicator call it.

    Args:
        arrays: of shape (rows, ...); all ranks have as many, which differ in their rows alone.
        ranks: the communicator.
        patience: for how long to wait for each message.

    Raises:
        UserError: a message did not come in time.
    """
    own = np.array([len(array) for array in arrays], np.int64)
    rows = np.empty((ranks.size, len(arrays)), np.int64)
    wait(ranks.Iallgather(own, rows), "the number of predictions", patience)
    what = "the predictions of another pipeline"
    if ranks.rank:
        for array in arrays:
            for part in messages_of(np.ascontiguousarray(array)):
                wait(ranks.Isend([part, MPI.BYTE], 0), what, patience)
        return None
    gathered = [
        np.empty((count, *array.shape[1:]), array.dtype)
        for count, array in zip(rows.sum(axis=0), arrays, strict=True)
    ]
    ends = rows.cumsum(axis=0)
    for rank in range(ranks.size):
        for whole, array, end, count in zip(gathered, arrays, ends[rank], rows[rank], strict=True):
            place = whole[end - count : end]
            if rank == 0:
                place[:] = array
                continue
            for part in messages_of(place):
                wait(ranks.Irecv([part, MPI.BYTE], rank), what, patience)
    return gathered
