"""Passes whole batches through the stages of a pipeline, forward only.

Without a backward pass no schedule is needed: in each tick, each stage computes one batch. A stage
lags two ticks behind the one before, if that is on another rank: one tick for what is sent to
arrive, so that no rank waits for a message that has just been sent::

    tick      0  1  2  3  4  5
    stage 0   0  1  2  3  4  5      on rank 0
    stage 1         0  1  2  3      on rank 1
    stage 2         0  1  2  3      on rank 1

Each rank runs one tick after the other, and its stages of a tick in their order. What a stage
receives was sent in an earlier tick, so no placement of stages makes ranks wait for each other in
a circle; and no more than three batches are on their way to a stage.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ooodist.pipeline.runtime.runtime import Boundary
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.planner.pipeline.actions import Kind

LAG = 2  # ticks from a stage to the next on another rank

Batch = TypeVar("Batch")


def lags(rank_of: Sequence[int]) -> list[int]:
    """The number of ticks by which each stage lags behind the first.

    Args:
        rank_of: the rank of each stage.
    """
    steps = (LAG if one != other else 0 for one, other in itertools.pairwise(rank_of))
    return list(itertools.accumulate(steps, initial=0))


class ForwardPass(Iterator[Sequence[Any]], Generic[Batch]):
    """Yields what the last stage makes of each batch, on the ranks that get it.

    All ranks of the pipeline iterate over the same batches, and as far. If they stop before the
    end, they all call :meth:`finish` before they use the transport again.

    Args:
        rank_of: the rank of each stage.
        transport: to the other ranks.
        works: what this rank's stages compute, by number: (batch, what was received) -> what is
            sent.
        boundaries: returns the boundary behind each stage for a batch; behind the last one, to
            those who get its results.
        readers: ranks that get the results, besides that of the last stage.
        batches: in their order; a batch is not None.
    """

    def __init__(
        self,
        rank_of: Sequence[int],
        transport: Transport,
        works: Mapping[int, Callable[[Batch, Sequence[Any]], Sequence[Any]]],
        boundaries: Callable[[Batch], Sequence[Boundary]],
        readers: Collection[int],
        batches: Iterator[Batch],
    ) -> None:
        self._rank_of = rank_of
        self._transport = transport
        self._works = works
        self._boundaries = boundaries
        self._readers = sorted({*readers} - {rank_of[-1]})
        self._batches = batches
        self._own = [stage for stage, at in enumerate(rank_of) if at == transport.rank]
        # Behind the last stage: reading its results, in the same tick.
        self._lags = [*lags(rank_of), lags(rank_of)[-1]]
        self._tick = 0
        self._next = 0  # the batch whose result is yielded next
        self._num_read = 0
        self._held: dict[int, Batch] = {}  # which stages of this rank still compute
        self._ways: dict[int, Sequence[Boundary]] = {}  # of each batch that is under way
        self._made: dict[tuple[int, int], Sequence[Any]] = {}  # by stage that needs it, and batch
        self._posted: dict[tuple[int, int], tuple[Message, Boundary]] = {}
        self._sent: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)

    def __next__(self) -> Sequence[Any]:
        """The next result; nothing on ranks that do not get it.

        Raises:
            Stalled: a message did not come in time.
        """
        batch, results = self._next, len(self._rank_of)
        while self._tick <= batch + self._lags[-1]:
            self._run_tick()
        if not self._is_there(batch):
            raise StopIteration
        self._next += 1
        is_reader = self._transport.rank in (self._rank_of[-1], *self._readers)
        return self._received(results, batch) if is_reader else ()

    def finish(self) -> None:
        """Receives what is on its way to this rank, which nobody needs any more."""
        for message, _ in self._posted.values():
            self._transport.wait(message)
        self._posted.clear()

    def _is_there(self, batch: int) -> bool:
        return 0 <= batch < self._num_read

    def _run_tick(self) -> None:
        tick, lags, rank = self._tick, self._lags, self._transport.rank
        read = next(self._batches, None)
        if read is not None:
            self._held[tick], self._ways[tick] = read, self._boundaries(read)
            self._num_read = tick + 1
        for stage in self._own:
            if stage:
                self._post(stage, tick - lags[stage - 1])
        if rank in self._readers:
            self._post(len(self._rank_of), tick - lags[-1])
        for stage in self._own:
            batch = tick - lags[stage]
            if self._is_there(batch):
                self._compute(stage, batch)
        self._held.pop(tick - lags[self._own[-1]], None)
        self._ways.pop(tick - lags[-1], None)
        self._tick += 1

    def _compute(self, stage: int, batch: int) -> None:
        received = self._received(stage, batch) if stage else ()
        made = self._works[stage](self._held[batch], received)
        is_last = stage + 1 == len(self._rank_of)
        takers = [*self._readers, self._rank_of[-1]] if is_last else [self._rank_of[stage + 1]]
        for taker in takers:
            if taker == self._transport.rank:
                self._made[stage + 1, batch] = made
            else:
                self._send(stage + 1, batch, taker, made)

    def _received(self, stage: int, batch: int) -> Sequence[Any]:
        """What the stage before has made of a batch; waits for it."""
        if (stage, batch) in self._made:
            return self._made.pop((stage, batch))
        message, boundary = self._posted.pop((stage, batch))
        self._transport.wait(message)
        return boundary.unpack(Kind.F, message.arrays)

    # Messages

    def _post(self, stage: int, batch: int) -> None:
        """Begins to receive what the stage before sends in this tick, if it is on another rank."""
        peer = self._rank_of[stage - 1]
        if peer == self._transport.rank or not self._is_there(batch):
            return
        boundary = self._ways[batch][stage - 1]
        places = boundary.receive_buffers(Kind.F)
        message = self._transport.receive(_name(stage, batch), peer, self._tag(stage), places)
        self._posted[stage, batch] = message, boundary

    def _send(self, stage: int, batch: int, peer: int, made: Sequence[Any]) -> None:
        boundary = self._ways[batch][stage - 1]
        sent = self._sent[stage, peer]
        if len(sent) == LAG:  # the other rank is slower: activations must not pile up here
            self._transport.wait(sent.popleft())
        arrays = boundary.pack(Kind.F, made)
        sent.append(self._transport.send(_name(stage, batch), peer, self._tag(stage), arrays))

    def _tag(self, stage: int) -> int:
        """The tag of messages to a stage: from above, as those of training from below."""
        return self._transport.largest_tag - stage


def _name(stage: int, batch: int) -> str:
    return f"batch {batch} before stage {stage}"
