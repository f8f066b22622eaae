"""Puts the predictions of several pipelines together on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ooodist.engines.arrays import messages_of
from ooodist.util.patience import Patience

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator


def gather_rows(
    arrays: Sequence[np.ndarray], ranks: Communicator, patience: Patience
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
    number, what = "the number of predictions", "the predictions of another pipeline"
    own = np.array([len(array) for array in arrays], np.int64)
    if ranks.rank:
        ranks.send([own], 0).wait(number, patience)
        for array in arrays:
            messages = messages_of(np.ascontiguousarray(array))
            ranks.send(messages, 0).wait(what, patience)
        return None
    rows = np.tile(own, (ranks.size, 1))
    for rank in range(1, ranks.size):
        ranks.receive([rows[rank]], rank).wait(number, patience)
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
            else:
                ranks.receive(messages_of(place), rank).wait(what, patience)
    return gathered
