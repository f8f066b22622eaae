"""Whether any order of a small pipeline's actions is faster than a given time: all are tried.

Orders are built as by Giffler and Thompson (1960): of all actions that could come next on some
rank, one ends first; on its rank the next action begins before that end, or else that one could be
put before it. Where that might take memory, or a link, that another action needs, it can also be
put off until the rank has done something else.

A partial order is given up if what is left takes too long, or if another one that has done the same
is nowhere later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ooodist.planner.pipeline.costs import PipelineCosts

Times = tuple[float, ...]
KINDS = ("F", "I", "W")


@dataclass(frozen=True)
class _State:
    """What has been done.

    Attributes:
        done: of each stage, numbers of F, I and W.
        kept: bytes of each rank.
        time: of each rank, the end of its last action.
        links: until when each is in use; from rank a to b: number a * ranks + b.
        arrived: for F and for I: when what each stage has yet to use arrives.
        put_off: stages and kinds of which their ranks must do something else.
    """

    done: tuple[tuple[int, int, int], ...]
    kept: tuple[int, ...]
    time: Times
    links: Times
    arrived: tuple[tuple[Times, ...], tuple[Times, ...]]
    put_off: frozenset[tuple[int, int]] = frozenset()

    @property
    def moments(self) -> Times:
        """All times; an order that is later in none of them is as good."""
        return (*self.time, *self.links, *(t for part in self.arrived for ts in part for t in ts))


class Exact:
    """For any stages and memory limit; an update takes no time.

    Args:
        rank_of: of each stage.
        microbatches: in a step.
        costs: of the stages.
    """

    def __init__(self, rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts) -> None:
        self._rank_of, self._microbatches, self._stages = rank_of, microbatches, costs.stages
        self._ranks = max(rank_of) + 1
        self._limit = costs.memory_limit
        self._seconds = [tuple(stage.seconds(kind) for kind in KINDS) for stage in costs.stages]
        self._bytes = [tuple(stage.saved_bytes(kind) for kind in KINDS) for stage in costs.stages]
        self._has_choice = [
            self._limit is not None or rank_of.count(rank) > 1 for rank in range(self._ranks)
        ]

    def is_any_faster(self, seconds: float) -> bool:
        """Whether the actions of some order end before that."""
        stages, ranks = self._stages, self._ranks
        base = [0] * ranks
        for rank, stage in zip(self._rank_of, stages, strict=True):
            base[rank] += stage.base_bytes
        none: tuple[Times, ...] = ((),) * len(stages)
        done = ((0, 0, 0),) * len(stages)
        left = [_State(done, tuple(base), (0.0,) * ranks, (0.0,) * ranks**2, (none, none))]
        known: dict[object, list[Times]] = {}
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
        ends = {(s, kind): at + self._seconds[s][kind] for (s, kind), at in begins.items()}
        first = min(ends, key=lambda key: (ends[key], key))
        rank = self._rank_of[first[0]]
        found = [
            self._after(state, *key, begin)
            for key, begin in begins.items()
            if self._rank_of[key[0]] == rank and (begin < ends[first] or key == first)
        ]
        if self._has_choice[rank]:
            found.append(replace(state, put_off=state.put_off | {first}))
        return found

    def _begins(self, state: _State) -> dict[tuple[int, int], float]:
        """When each stage could begin its next F (0), I (1) and W (2), if it could."""
        begins: dict[tuple[int, int], float] = {}
        for stage, (f, b, w) in enumerate(state.done):
            rank = self._rank_of[stage]
            has_next = (f < self._microbatches, b < f, w < b)
            is_first = (stage == 0, stage + 1 == len(self._stages), True)
            for kind in range(3):
                needed = state.kept[rank] + self._bytes[stage][kind][0]
                fits = self._limit is None or needed <= self._limit
                if not has_next[kind] or not fits or (stage, kind) in state.put_off:
                    continue
                if is_first[kind]:
                    begins[stage, kind] = state.time[rank]
                elif arrived := state.arrived[kind][stage]:
                    begins[stage, kind] = max(state.time[rank], arrived[0])
        return begins

    def _after(self, state: _State, stage: int, kind: int, begin: float) -> _State:
        rank, end = self._rank_of[stage], begin + self._seconds[stage][kind]
        counts = list(state.done[stage])
        counts[kind] += 1
        links, arrived = list(state.links), [list(part) for part in state.arrived]
        if kind < 2:
            arrived[kind][stage] = arrived[kind][stage][1:]
            to = stage + (1, -1)[kind]
            if 0 <= to < len(self._stages):
                at = end
                if self._rank_of[to] != rank:
                    link = rank * self._ranks + self._rank_of[to]
                    at = links[link] = max(end, links[link]) + self._way(stage, kind)
                arrived[kind][to] = (*arrived[kind][to], at)
        return _State(
            _with(state.done, stage, (counts[0], counts[1], counts[2])),
            _with(state.kept, rank, state.kept[rank] + sum(self._bytes[stage][kind])),
            _with(state.time, rank, end),
            tuple(links),
            (tuple(arrived[0]), tuple(arrived[1])),
            frozenset(key for key in state.put_off if self._rank_of[key[0]] != rank),
        )

    def _way(self, stage: int, kind: int) -> float:
        cost = self._stages[stage]
        return (cost.send_seconds, cost.send_back_seconds)[kind]

    def _between(self, stage: int) -> float:
        """Seconds of the ways from the stage before to this one, and back."""
        if stage == 0 or self._rank_of[stage - 1] == self._rank_of[stage]:
            return 0.0
        return self._way(stage - 1, 0) + self._way(stage, 1)

    def _least(self, state: _State) -> float:
        """Seconds that no order which goes on from here is faster than."""
        least = 0.0
        work = list(state.time)
        back = self._seconds[0][2]  # from the end of a stage's I to that of stage 0's W
        ways_back = []
        for stage, (seconds, done) in enumerate(zip(self._seconds, state.done, strict=True)):
            left = zip(seconds, done, strict=True)
            work[self._rank_of[stage]] += sum(s * (self._microbatches - d) for s, d in left)
            if stage and self._rank_of[stage - 1] != self._rank_of[stage]:
                back += self._way(stage, 1)
            ways_back.append(back)
            back += seconds[1]
        on = 0.0  # from the end of a stage's F through all that are behind it, and back to it
        for stage in reversed(range(len(self._stages))):
            seconds, now = self._seconds[stage], state.time[self._rank_of[stage]]
            f, b, _ = (self._microbatches - count for count in state.done[stage])
            if f:
                least = max(least, now + f * seconds[0] + on + seconds[1] + ways_back[stage])
            elif b:
                least = max(least, now + b * seconds[1] + ways_back[stage])
            on += seconds[0] + seconds[1] + self._between(stage)
        return max(least, *work)


def _with(those: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*those[:index], value, *those[index + 1 :])


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
