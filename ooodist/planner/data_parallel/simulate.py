"""Simulates a plan: plays a whole call through on one compute stream and a network.

Two steps of a call of three layers, whose exchanges go in sequence. The gradient of layer 1 is
exchanged first, while W2 and W3 still run. F1 of the second step waits (``.``) for its update
(``u``), and runs while layers 2 and 3 are still being exchanged::

    compute  F1 F2 F3 X3 X2 W1 W2 W3 ..uF1 ....uF2 ....uF3 X3 X2 W1 W2 W3 ..u.......u.......u
    ready                      1  2  3                              1  2  3
    lane                       [  1   ][  2   ][  3   ]             [  1   ][  2   ][  3   ]

A call that leaves the exchange of layer 3 to the next one (it is ``carried``), between two others
of its kind. It has one step, and takes 38 s; without carrying it takes 43 s::

    compute  F1 F2 ..uF3 X3 X2 W1 W2 W3 ..u.......u
    ready    3                    1  2
    lane     [  3   ]             [  1   ][  2   ]

Rules beyond the docstrings of costs.py and plan.py:

* The compute stream does one thing at a time, and nothing is interrupted. A step is its F units,
  ``middle_seconds``, and its backward units in the plan's order. Steps follow without a gap.
* Before it starts a unit, the stream deals with all exchanges that have arrived by then, in order
  of arrival, and with those that arrive while it does so. To deal with one is to pay for its CPU
  time, and to update the weights of which it was the last chunk.
* An F unit waits until its weights are updated with the previous step's gradients. The stream is
  idle while a unit waits with nothing to deal with, and when no unit is left.
* The stream pays for an exchange's CPU time when it arrives, less the idle time that ends with the
  arrival: the exchange used that while it travelled. An exchange that arrives at the instant at
  which an idle time begins is paid for in full; those that arrive together at its end share it.
* A gradient is ready at the end of the backward unit that names its weight, or, if none does,
  before the first backward unit; an exchange is ready when all its gradients are.
* Each piece has the latency. In sequence, ``credit`` counts exchanges, and the pieces of one enter
  together; by urgency, it counts pieces.
* At any instant, the network comes first: what is complete makes room, the most urgent of what is
  ready enters, and then the stream continues.
* Carried exchanges are ready when a call begins. They are handed over before all others, in the
  plan's order, and the F units of its first step wait for their updates. Its last step does not
  hand them over, and updates no weight of which a chunk is carried.
* An exchange of a narrow weight has the bytes and the CPU time of planner/wire.py.
* An exchange in low rank (planner/low_rank.py) is the first of two. When the stream has dealt with
  it, it hands over the second: behind all that the network has been given, if in sequence, and less
  urgent than all that the plan lists, if by urgency. It needs no credit in sequence.
* With one worker nothing is exchanged or carried: gradients arrive when they are ready, at no cost.
* A call ends when nothing is in flight and all is updated; the costs' ``launch_seconds`` are added.
  So each call begins like the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.indexed import IndexedCosts, IndexedPlan
from ooodist.planner.data_parallel.memory_over_time import Memory
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange, with_carried
from ooodist.planner.data_parallel.simulated_execution import SimulatedExecution

UnitKind = Literal["F", "dX", "dW", "update", "middle"]


@dataclass(frozen=True)
class UnitSpan:
    """A span of the compute stream; seconds from the start of the call.

    Attributes:
        step: index in the call, from 0; -1 for the update after a carried exchange.
        name: the unit; for an ``update``, the weight; else ``middle``.
    """

    step: int
    name: str
    kind: UnitKind
    start: float
    end: float


@dataclass(frozen=True)
class ExchangeSpan:
    """The span of an exchange, or of one piece of it; seconds from the start of the call.

    Attributes:
        step: index in the call, from 0; -1 for one that the call before has left.
        num_bytes: size of the piece.
        ready: when the exchange's gradients are ready; 0 if they are when the call begins.
        start: when its bytes begin to move.
        end: when it is complete.
    """

    step: int
    exchange: PlannedExchange
    num_bytes: int
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """A simulated call, one of many that are alike.

    Attributes:
        units: in execution order. A gap between two is idle time, or CPU time of exchanges.
        exchanges: in the order in which they enter the network; empty with one worker.
        memory: (time, bytes alive from then on), ``base_bytes`` included. Where one tensor is made
            and another freed at the same time, both are counted first.
        launch_seconds: seconds of the whole call, with the costs' own ``launch_seconds``.
        step_seconds: ``launch_seconds`` divided by the number of steps.
    """

    units: tuple[UnitSpan, ...]
    exchanges: tuple[ExchangeSpan, ...]
    memory: tuple[tuple[float, int], ...]
    launch_seconds: float
    step_seconds: float
    steps: int


class Simulator:
    """Simulates plans for one model and one network.

    All methods raise UserError for a plan that does not fit the costs.
    """

    def __init__(self, costs: StepCosts, network: Network) -> None:
        """Raises UserError for costs with names that are not unique or are undefined."""
        self.costs = costs
        self.network = network
        self._indexed = IndexedCosts(costs, network)
        self._memory = Memory(costs)

    @property
    def steps_are_alike(self) -> bool:
        """Whether calls of any number of steps are simulated by playing one or two."""
        return self._indexed.all_awaited

    def step_seconds(self, plan: Plan) -> float:
        """The seconds of one step: those of a call divided by its number of steps.

        With carried exchanges, the call is any but the first.

        Fast enough to search with: at 160 units, 55 exchanges and 3 steps per execution, 6,800
        calls of this method a second in sequence and 6,300 by urgency, on one core (CPU time); a
        plan of 1,000 layers takes some 20 times as long as one of 50.
        """
        return self.seconds_by_steps(plan, [plan.steps_per_execution])[plan.steps_per_execution]

    def seconds_by_steps(self, plan: Plan, numbers: Sequence[int]) -> dict[int, float]:
        """The seconds of one step, by the number of steps of a call, of which these are given.

        That takes little longer than for a single number; see simulated_execution.py.
        """
        indexed = self._indexed.index(plan)
        # A call of a single step that carries is like no step of a longer one.
        alike = [number for number in numbers if number > 1 or not indexed.carried]
        repeated = self._execution(indexed, plan).repeat(alike) if alike else []
        calls = dict(zip(alike, repeated or (), strict=False))
        for number in numbers:
            if number not in calls:
                settings = replace(plan, steps_per_execution=number)
                calls[number] = self._execution(indexed, settings).play()
        launch = self.costs.launch_seconds
        return {number: (calls[number] + launch) / number for number in numbers}

    def _execution(self, indexed: IndexedPlan, plan: Plan) -> SimulatedExecution:
        return SimulatedExecution(self._indexed, indexed, plan, self.network)

    def run(self, plan: Plan) -> Simulation:
        """Simulates the plan with all its spans."""
        indexed = self._indexed.index(plan)
        execution = SimulatedExecution(self._indexed, indexed, plan, self.network, recorded=[])
        seconds = execution.play() + self.costs.launch_seconds
        units = self._unit_spans(indexed, execution)
        residuals = self._memory.residual_bytes(plan)
        return Simulation(
            units=tuple(units),
            exchanges=tuple(self._exchange_spans(plan, indexed, execution)),
            memory=tuple((at, alive + residuals) for at, alive in self._memory.track(units)),
            launch_seconds=seconds,
            step_seconds=seconds / plan.steps_per_execution,
            steps=plan.steps_per_execution,
        )

    def entry_order(self, plan: Plan) -> list[PlannedExchange]:
        """Exchanges in the order in which their pieces enter amid a long call."""
        # A step with full steps before it, if exchanges of the previous step may still compete.
        step = 0 if self._indexed.all_awaited else 2
        plan = with_carried(replace(plan, steps_per_execution=2 * step or 1), ())
        execution = self._execution(self._indexed.index(plan), plan)
        execution.play()
        entered = [e for _, _, _, of, e, _ in execution.lanes.arrivals if of == step]
        return [plan.exchanges[e] for e in entered if e < len(plan.exchanges)]

    def peak_bytes(self, plan: Plan) -> int:
        """The most bytes alive at one time, however slow the network is."""
        self._indexed.check_order(plan)
        return self._memory.peak_bytes(plan)

    def _unit_spans(self, indexed: IndexedPlan, execution: SimulatedExecution) -> list[UnitSpan]:
        spans = []
        for step, kind, number, start, end in execution.recorded or ():
            if kind == "F":
                spans.append(UnitSpan(step, self.costs.forward[number].name, "F", start, end))
            elif kind == "backward":
                unit = self.costs.backward[indexed.order[number]]
                spans.append(UnitSpan(step, unit.name, unit.kind, start, end))
            elif kind == "update":
                name = self.costs.weights[number].name
                spans.append(UnitSpan(step, name, "update", start, end))
            elif end > start:
                spans.append(UnitSpan(step, "middle", "middle", start, end))
        return spans

    def _exchange_spans(
        self, plan: Plan, indexed: IndexedPlan, execution: SimulatedExecution
    ) -> list[ExchangeSpan]:
        if self.network.workers == 1:
            return []
        ends = {  # of the units after which gradients may be ready
            (step, 0 if kind == "middle" else number + 1): end
            for step, kind, number, _, end in execution.recorded or ()
            if kind in ("middle", "backward")
        }
        first = {second: number for number, second in indexed.second.items()}
        arrived = {(step, number): end for end, _, _, step, number, _ in execution.lanes.arrivals}
        return [
            ExchangeSpan(
                step=step,
                exchange=plan.exchanges[first.get(number, number)],
                num_bytes=piece.num_bytes,
                ready=arrived[step, first[number]]
                if number in first
                else max(
                    ends.get((step, indexed.ready_after[weight]), 0.0)
                    for weight in indexed.weights[indexed.second.get(number, number)]
                ),
                start=begin,
                end=end,
            )
            for end, begin, piece, step, number, _ in execution.lanes.arrivals
        ]
