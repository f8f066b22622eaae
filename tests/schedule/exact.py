"""Whether any order of a small pipeline's actions is faster than a given time: all are tried.

Orders are built as by Giffler and Thompson (1960): of all actions that could come next on some
rank, one ends first; on its rank the next action begins before that end, or else that one could be
put before it. That holds for B and W, which need no further memory; where a rank may keep so many
micro-batches only, an F can also be put off until the rank has done something else.

A partial order is given up if what is left takes too long, or if another one that has done the same
is nowhere later.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from ooodist.schedule.pipeline_costs import StageCost

Times = tuple[float, ...]


@dataclass(frozen=True)
class _State:
    """What has been done.

    Attributes:
        done: of each rank, numbers of F, B and W.
        time: of each rank, the end of its last action.
        forward, backward: for each rank, when what it has yet to use of the rank before (behind)
            arrives; first the last arrival of all, until when the link is in use.
        put_off: ranks that must do something else than F.
    """

    done: tuple[tuple[int, int, int], ...]
    time: Times
    forward: tuple[Times, ...]
    backward: tuple[Times, ...]
    put_off: frozenset[int] = frozenset()

    @property
    def moments(self) -> Times:
        """All times; an order that is later in none of them is as good."""
        return (*self.time, *(t for those in (*self.forward, *self.backward) for t in those))


class Exact:
    """For one stage a rank, of which each micro-batch keeps the same from F to W.

    Args:
        stages: their costs.
        microbatches: in a step.
        limit: micro-batches that a rank may keep; None: any number.
    """

    def __init__(
        self, stages: tuple[StageCost, ...], microbatches: int, limit: int | None = None
    ) -> None:
        self._stages, self._microbatches = stages, microbatches
        self._limit = microbatches if limit is None else limit
        self._seconds = [(s.forward, s.input_gradient, s.weight_gradient) for s in stages]

    def is_any_faster(self, seconds: float) -> bool:
        """Whether the actions of some order end before that."""
        ranks = len(self._stages)
        none: Times = (0.0,)
        first = _State(((0, 0, 0),) * ranks, (0.0,) * ranks, (none,) * ranks, (none,) * ranks)
        known: dict[object, list[Times]] = {}
        left = [first]
        while left:
            state = left.pop()
            if all(w == self._microbatches for _, _, w in state.done):
                return True
            for following in self._following(state):
                if self._least(following) < seconds - 1e-9 and _is_new(following, known):
                    left.append(following)
        return False

    def _following(self, state: _State) -> list[_State]:
        begins = self._begins(state)
        if not begins:
            return []
        ends = {key: begin + self._seconds[key[0]][key[1]] for key, begin in begins.items()}
        rank, kind = min(ends, key=lambda key: (ends[key], key[1] == 0))
        found = [
            self._after(state, rank, other, begin)
            for (at, other), begin in begins.items()
            if at == rank and (begin < ends[rank, kind] or other == kind)
        ]
        if kind == 0 and self._limit < self._microbatches:
            found.append(replace(state, put_off=state.put_off | {rank}))
        return found

    def _begins(self, state: _State) -> dict[tuple[int, int], float]:
        """When each rank could begin its next F (0), B (1) and W (2), if it could."""
        begins: dict[tuple[int, int], float] = {}
        for rank, (f, b, w) in enumerate(state.done):
            now = state.time[rank]
            fits = f < self._microbatches and f - w < self._limit and rank not in state.put_off
            if fits and rank == 0:
                begins[rank, 0] = now
            elif fits and len(state.forward[rank]) > 1:
                begins[rank, 0] = max(now, state.forward[rank][1])
            if b < f and rank == len(state.done) - 1:
                begins[rank, 1] = now
            elif b < f and len(state.backward[rank]) > 1:
                begins[rank, 1] = max(now, state.backward[rank][1])
            if w < b:
                begins[rank, 2] = now
        return begins

    def _after(self, state: _State, rank: int, kind: int, begin: float) -> _State:
        end = begin + self._seconds[rank][kind]
        done, time = list(state.done), list(state.time)
        counts = list(done[rank])
        counts[kind] += 1
        done[rank], time[rank] = (counts[0], counts[1], counts[2]), end
        forward, backward = list(state.forward), list(state.backward)
        cost = self._stages[rank]
        if kind == 0:
            forward[rank] = _used(forward[rank])
            if rank + 1 < len(done):
                forward[rank + 1] = _sent(forward[rank + 1], end, cost.send_seconds)
        if kind == 1:
            backward[rank] = _used(backward[rank])
            if rank:
                backward[rank - 1] = _sent(backward[rank - 1], end, cost.send_back_seconds)
        return _State(
            tuple(done), tuple(time), tuple(forward), tuple(backward), state.put_off - {rank}
        )

    def _least(self, state: _State) -> float:
        """Seconds that no order which goes on from here is faster than."""
        least, stages = 0.0, self._stages
        ways_back = [stages[0].weight_gradient]  # from the end of a rank's B to that of rank 0's W
        for before, cost in itertools.pairwise(stages):
            ways_back.append(cost.send_back_seconds + before.input_gradient + ways_back[-1])
        on = 0.0  # from the end of a rank's F through all that are behind it, and back to it
        for rank in reversed(range(len(stages))):
            cost, now = stages[rank], state.time[rank]
            f, b, w = (self._microbatches - count for count in state.done[rank])
            each = self._seconds[rank]
            least = max(least, now + f * each[0] + b * each[1] + w * each[2])
            if f:
                least = max(least, now + f * each[0] + on + each[1] + ways_back[rank])
            elif b:
                least = max(least, now + b * each[1] + ways_back[rank])
            if rank:
                before = stages[rank - 1]
                on += each[0] + each[1] + before.send_seconds + cost.send_back_seconds
        return least


def _used(times: Times) -> Times:
    return (times[0], *times[2:])


def _sent(times: Times, end: float, seconds: float) -> Times:
    arrival = max(end, times[0]) + seconds if seconds else end
    return (arrival, *times[1:], arrival)


def _is_new(state: _State, known: dict[object, list[Times]]) -> bool:
    """Whether no known state that has done the same is nowhere later; it is known from now on."""
    moments = state.moments
    others = known.setdefault((state.done, state.put_off), [])
    if any(all(a <= b for a, b in zip(those, moments, strict=True)) for those in others):
        return False
    others[:] = [
        those for those in others if any(a < b for a, b in zip(those, moments, strict=True))
    ]
    others.append(moments)
    return True
