"""Ranks that exchange arrays over MPI: ``mpirun -np 3 python communicator_worker.py CHECK...``."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ooodist.engines import arrays
from ooodist.engines.communicator import Communicator
from ooodist.util.patience import Patience, Stalled

LIMIT = 0.5  # seconds

WORLD = Communicator.of_all()


def check_the_same_numbers_are_together() -> None:
    """In the order of the ranks; and messages of a duplicate do not meet the others."""
    ends = WORLD.split(WORLD.rank % 2)
    assert (ends.rank, ends.size) == ([0, 0, 1][WORLD.rank], [2, 1, 2][WORLD.rank])
    found = ends.gather(np.array(WORLD.rank))
    assert found.tolist() == ([1] if WORLD.rank == 1 else [0, 2])
    assert WORLD.of_host().size == WORLD.size
    ends.free()
    twin = WORLD.duplicate()
    ours, theirs = np.zeros(1), np.zeros(1)
    if WORLD.rank == 0:
        WORLD.send([np.array([1.0])], 2).wait()
        twin.send([np.array([2.0])], 2).wait()
    if WORLD.rank == 2:
        received = [twin.receive([theirs], 0), WORLD.receive([ours], 0)]
        for each in received:
            each.wait()
        assert (ours[0], theirs[0]) == (1.0, 2.0)
    twin.free()


def check_two_and_three_ranks_agree() -> None:
    """On sums, means, maxima and minima, of any number of elements."""
    random = np.random.default_rng(1)
    everybody = random.integers(-9, 9, (WORLD.size, 5)).astype(np.float64)
    ends = WORLD.split(WORLD.rank % 2)
    for ranks, of_all in ((WORLD, everybody), (ends, everybody[WORLD.rank % 2 :: 2])):
        own = of_all[ranks.rank]
        assert ranks.all_reduce(own, "sum").tolist() == of_all.sum(0).tolist()
        assert ranks.all_reduce(own, "mean").tolist() == (of_all.sum(0) / ranks.size).tolist()
        assert ranks.all_reduce(own, "max").tolist() == of_all.max(0).tolist()
        assert ranks.all_reduce(own, "min").tolist() == of_all.min(0).tolist()
        assert ranks.all_reduce(own[:0], "sum").shape == (0,)
        in_place = own.copy()
        ranks.begin_sum(in_place).wait()
        assert in_place.tolist() == of_all.sum(0).tolist()


def check_one_rank_gives_and_one_gets() -> None:
    """In messages of any size."""
    most = arrays.MOST_BYTES
    for arrays.MOST_BYTES in (7, most):
        for root in range(WORLD.size):
            array = np.arange(9.0) * (WORLD.rank + 1)
            WORLD.begin_broadcast(array, root).wait()
            assert array.tolist() == (np.arange(9.0) * (root + 1)).tolist()
            array = np.arange(9.0) * (WORLD.rank + 1)
            WORLD.begin_sum(array, root).wait_awake()
            if WORLD.rank == root:
                assert array.tolist() == (np.arange(9.0) * 6).tolist()


def check_who_waits_in_vain_is_named() -> None:
    """And for what."""
    if WORLD.rank == 0:
        transfer = WORLD.receive([np.zeros(1)], 1, tag=3)
        with pytest.raises(Stalled, match=r"rank 0 waits at the loss since .* not all ranks"):
            transfer.wait("the loss", Patience(LIMIT))
        assert not transfer.is_complete()
    WORLD.barrier()
    if WORLD.rank == 1:
        WORLD.send([np.zeros(1)], 0, tag=3).wait()
    if WORLD.rank == 0:
        transfer.wait()
        assert transfer.is_complete()


if __name__ == "__main__":
    for check in sys.argv[1:]:
        globals()[check]()
        WORLD.barrier()
        print(f"held: {check};", flush=True)
    assert not {"tensorflow", "keras"} & set(sys.modules)
