"""Batches that pass through stages: ``mpirun -np 3 python forward_pass_worker.py CHECK...``.

The stages compute with NumPy: stage s makes 10 x + s of each number x that it has received. A batch
is an array; its size is that of all messages.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from mpi4py import MPI

from ooodist.engines.communicator import Communicator
from ooodist.pipeline.runtime.forward_pass import ForwardPass, lags
from ooodist.pipeline.runtime.transport import Transport
from ooodist.util.patience import Patience, Stalled

LIMIT = 5.0  # seconds that a rank waits for a message
PLACEMENTS = 60
LARGE = 1 << 18  # numbers of a message; far above what MPI hands over without the receiver
WORK_SECONDS = 0.02


class Numbers:
    """A boundary that a float64 array of shape (size,) crosses."""

    def __init__(self, size: int) -> None:
        self._size = size

    def receive_buffers(self, kind: str) -> list[np.ndarray]:
        return [np.zeros(self._size)]

    def pack(self, kind: str, values: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return values

    def unpack(self, kind: str, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return arrays

    def link_seconds(self, kind: str) -> float:
        return 0.0


class Stages:
    """All stages of a pipeline, of which this rank computes its own.

    Attributes:
        computed: (stage, first number of the batch), in the order in which they were computed.
        num_read: batches that were read.
    """

    def __init__(
        self, transport: Transport, rank_of: Sequence[int], seconds: Sequence[float] = ()
    ) -> None:
        self.rank_of = rank_of
        self.computed: list[tuple[int, float]] = []
        self.num_read = 0
        self._transport = transport
        self._seconds = seconds or [0.0] * len(rank_of)

    def passing(
        self, batches: Sequence[np.ndarray], readers: Collection[int]
    ) -> ForwardPass[np.ndarray]:
        works = {
            stage: lambda batch, received, stage=stage: self._compute(stage, batch, received)
            for stage, at in enumerate(self.rank_of)
            if at == self._transport.rank
        }
        return ForwardPass(
            self.rank_of,
            self._transport,
            works,
            lambda batch: [Numbers(batch.size)] * len(self.rank_of),
            readers,
            self._reading(batches),
        )

    def expected(self, batch: np.ndarray) -> np.ndarray:
        for stage in range(len(self.rank_of)):
            batch = 10 * batch + stage
        return batch

    def _reading(self, batches: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            self.num_read += 1
            yield batch

    def _compute(
        self, stage: int, batch: np.ndarray, received: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        time.sleep(self._seconds[stage])
        self.computed.append((stage, float(batch[0])))
        (x,) = received or [batch]
        return [10 * x + stage]


def numbered(number: int, size: int = 3) -> list[np.ndarray]:
    return [np.arange(size, dtype=float) + batch for batch in range(number)]


def check_any_placement_computes_all(transport: Transport) -> None:
    """Any rank may have any stages, the last one, too, and batches differ in their sizes."""
    chance = random.Random(1)  # the same on all ranks
    ranks = range(MPI.COMM_WORLD.size)
    for _ in range(PLACEMENTS):
        others = [chance.choice(ranks) for _ in range(chance.randint(0, 5))]
        rank_of = [*ranks, *others]
        chance.shuffle(rank_of)
        batches = [
            np.arange(chance.randint(1, 20), dtype=float) + number
            for number in range(chance.randint(0, 9))
        ]
        readers = chance.sample(ranks, chance.randint(0, len(ranks)))
        stages = Stages(transport, rank_of)
        found = list(stages.passing(batches, readers))
        assert len(found) == len(batches)
        if transport.rank in (*readers, rank_of[-1]):
            for (result,), batch in zip(found, batches, strict=True):
                np.testing.assert_array_equal(result, stages.expected(batch))
        else:
            assert found == [()] * len(batches)
        own = [stage for stage, at in enumerate(rank_of) if at == transport.rank]
        everything = {(stage, float(batch[0])) for stage in own for batch in batches}
        assert len(stages.computed) == len(everything)
        assert set(stages.computed) == everything
        for stage in own:
            firsts = [first for at, first in stages.computed if at == stage]
            assert firsts == sorted(firsts)


def check_the_last_stage_computes_what_was_asked_for(transport: Transport) -> None:
    """So its state is right wherever one stops; the others are a known number of batches ahead."""
    rank_of = [0, 1, 2, 0, 1, 2]
    stages = Stages(transport, rank_of)
    behind = lags(rank_of)
    passing = stages.passing(numbered(30), [0])
    for asked in range(1, 12):
        next(passing)
        assert stages.num_read == asked + behind[-1]
        for stage, at in enumerate(rank_of):
            if at == transport.rank:
                done = sum(each == stage for each, _ in stages.computed)
                assert done == asked + behind[-1] - behind[stage]
    passing.finish()


def check_a_pass_that_was_left_leaves_nothing(transport: Transport) -> None:
    """Messages of the next pass are not taken for those that were on their way."""
    rank_of = [0, 1, 2, 1]
    for asked in range(6):
        stages = Stages(transport, rank_of)
        left = stages.passing([batch - 100 for batch in numbered(20, LARGE // 8)], [0, 1, 2])
        for _ in range(asked):
            next(left)
        left.finish()
        batches = numbered(4, LARGE // 8)
        for (result,), batch in zip(stages.passing(batches, [0, 1, 2]), batches, strict=True):
            np.testing.assert_array_equal(result, stages.expected(batch))


def check_what_is_sent_does_not_pile_up(transport: Transport) -> None:
    """A fast stage waits for a slow one, though nobody tells it of results."""
    number, slow = 12, 5 * WORK_SECONDS
    stages = Stages(transport, [0, 1, 2], seconds=[0, slow, 0])
    began = time.monotonic()
    for _ in stages.passing(numbered(number, LARGE), []):
        pass
    assert stages.num_read == number
    if transport.rank == 0:
        # Up to five batches are between the two: three that are received, two that are sent.
        assert time.monotonic() - began > (number - 6) * slow


def check_stages_compute_at_the_same_time(transport: Transport) -> None:
    number = 16
    for rank_of in ([0, 1, 2], [0, 1, 2, 0, 1, 2], [0, 1, 2, 2, 1, 0]):
        stages = Stages(transport, rank_of, seconds=[WORK_SECONDS] * len(rank_of))
        MPI.COMM_WORLD.Barrier()
        began = time.monotonic()
        assert len(list(stages.passing(numbered(number), [0, 1, 2]))) == number
        one_after_the_other = number * len(rank_of) * WORK_SECONDS
        assert time.monotonic() - began < 0.6 * one_after_the_other


def check_a_rank_without_a_batch_is_named(transport: Transport) -> None:
    """The last of all checks: a message that never comes stays posted."""
    has_less = transport.rank == 0
    stages = Stages(transport, [0, 1, 2])
    passing = stages.passing(numbered(3 if has_less else 4), [])
    if transport.rank != 1:
        next(passing)
        return
    message = ""
    try:
        list(passing)
    except Stalled as error:
        message = str(error)
    assert "rank 1 waits at batch 3 before stage 1 since" in message, message
    assert "the message is not sent by rank 0" in message


def main(name: str) -> None:
    """Runs one check on this rank."""
    transport = Transport(Communicator.of_all(), Patience(LIMIT))
    globals()[name](transport)
    MPI.COMM_WORLD.Barrier()
    transport.close()
    print(f"held: {name}", flush=True)


if __name__ == "__main__":
    for check in sys.argv[1:]:
        main(check)
