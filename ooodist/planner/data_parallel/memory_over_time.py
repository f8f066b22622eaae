"""Memory over time: tensors that units save for others, and gradients until their update.

A tensor is alive from the end of the unit that makes it to the end of its last reader. One that no
unit reads is a gradient: it is alive until all weights whose gradients its unit completes have been
updated (all weights of the step, if it completes none). At the end of a unit, both what it has made
and what it was the last to read are alive. A gradient that is carried, even in part, is alive
between two calls: a call begins with those of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooodist.planner import low_rank
from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.wire import residual_bytes

if TYPE_CHECKING:
    from ooodist.planner.data_parallel.simulate import UnitSpan

Moments = npt.NDArray[np.int64]


class Memory:
    """Computes the memory that calls of one model need."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        weights_of = {unit.name: unit.weights for unit in costs.backward}
        every = tuple(weight.name for weight in costs.weights)
        # What frees each tensor if no unit reads it: updates of weights.
        self._updates = [
            () if tensor.used_by else weights_of.get(tensor.made_by) or every
            for tensor in costs.tensors
        ]

    def track(self, spans: Sequence[UnitSpan]) -> list[tuple[float, int]]:
        """Pairs (time, bytes alive from then on), ``base_bytes`` included, of a call's spans.

        At the end of a unit there can be two items with the same time: first what it has made is
        added, then what is no longer needed is freed.
        """
        unit_at: dict[tuple[int, str], int] = {}
        update_at: dict[tuple[int, str], int] = {}
        for moment, span in enumerate(spans):
            (update_at if span.kind == "update" else unit_at)[span.step, span.name] = moment
        before = -1  # the last step of the call before
        carried = []
        for tensor, weights in zip(self._costs.tensors, self._updates, strict=True):
            late = [update_at[before, name] for name in weights if (before, name) in update_at]
            if late:
                carried.append((max(late), tensor.num_bytes))
        lives = []
        for step in range(1 + max((span.step for span in spans), default=-1)):
            for tensor, weights in zip(self._costs.tensors, self._updates, strict=True):
                birth = unit_at[step, tensor.made_by]
                reads = [unit_at[step, name] for name in tensor.used_by]
                # What is carried is updated after the call.
                updates = [update_at.get((step, name), len(spans)) for name in weights]
                lives.append((birth, max([birth, *reads, *updates]), tensor.num_bytes))
        changes = _changes(*_columns(lives), len(spans) + 1)[: 2 * len(spans)]
        at_first = self._costs.base_bytes
        for death, num_bytes in carried:
            at_first += num_bytes
            changes[2 * death + 1] -= num_bytes
        alive = np.cumsum(changes) + at_first
        moments = np.flatnonzero(changes)
        ends = [(spans[moment // 2].end, int(alive[moment])) for moment in moments.tolist()]
        return [(0.0, at_first), *ends]

    def peak_bytes(self, plan: Plan) -> int:
        """The most bytes alive at one time in a call, however slow the network is.

        A gradient then lives until the next step's first F unit that waits for its weight, or, if
        none does, to the end of the call; if it is carried, of the next call.
        """
        costs = self._costs
        carried = set(plan.carried)
        forward = [unit.name for unit in costs.forward]
        order = plan.order or [unit.name for unit in costs.backward]
        moment_of = {name: moment for moment, name in enumerate((*forward, *order))}
        step_length = len(moment_of)
        waits: dict[str, int] = {}
        for moment, unit in enumerate(costs.forward):
            for weight in unit.weights:
                waits.setdefault(weight, moment)
        end = step_length * plan.steps_per_execution - 1
        lives = []
        at_first, freed = 0, []  # of what the call before has left: bytes; (moment, bytes)
        for tensor, weights in zip(costs.tensors, self._updates, strict=True):
            birth = moment_of[tensor.made_by]
            reads = [moment_of[name] for name in tensor.used_by]
            if late := [waits.get(name, end + 1) - 1 for name in weights if name in carried]:
                at_first += tensor.num_bytes
                freed.append((max(late), tensor.num_bytes))
            # An update runs before the F unit: at the latest right after the unit before that.
            updates = [step_length + waits[name] - 1 if name in waits else end for name in weights]
            lives.append((birth, max([birth, *reads, *updates]), tensor.num_bytes))
        births, deaths, sizes = _columns(lives)
        starts = np.arange(plan.steps_per_execution)[:, None] * step_length
        changes = _changes(
            (starts + births).ravel(),
            np.minimum(starts + deaths, end).ravel(),
            np.tile(sizes, plan.steps_per_execution),
            end + 1,
        )
        kept = at_first
        for moment, num_bytes in freed:
            if moment < 0:  # before the first F unit
                kept -= num_bytes
            else:
                changes[2 * moment + 1] -= num_bytes
        most = max(at_first, kept + int(np.cumsum(changes).max(initial=0)))
        return costs.base_bytes + self.residual_bytes(plan) + most

    def residual_bytes(self, plan: Plan) -> int:
        """The bytes of what is kept of gradients that travel narrow or thin, at all times."""
        narrow = set(plan.narrow)
        thin = {name for group in plan.low_rank for name in group.weights}
        return sum(
            low_rank.residual_bytes(w) if w.name in thin else residual_bytes(w)
            for w in self._costs.weights
            if w.name in narrow or w.name in thin
        )


def _columns(lives: list[tuple[int, int, int]]) -> tuple[Moments, Moments, Moments]:
    births, deaths, sizes = np.array(lives, dtype=np.int64).reshape(-1, 3).T
    return births, deaths, sizes


def _changes(births: Moments, deaths: Moments, sizes: Moments, num_moments: int) -> Moments:
    """Bytes allocated (items 0, 2, 4, ...) and freed (1, 3, 5, ...) at each moment."""
    changes = np.zeros(2 * num_moments, dtype=np.int64)
    np.add.at(changes, 2 * births, sizes)
    np.add.at(changes, 2 * deaths + 1, -sizes)
    return changes
