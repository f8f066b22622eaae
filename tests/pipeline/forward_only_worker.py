"""Ranks whose first stages only run forward: ``mpirun -np 2 python forward_only_worker.py M S``.

For each of the schedules S ..., with M micro-batches, and each first stage that trains: some steps
of the real runtime with emulated work, which must do what the schedule says and send nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooodist.emulation.emulate import EmulatedBoundary, EmulatedWork, emulate
from ooodist.engines.communicator import Communicator
from ooodist.pipeline.runtime.runtime import Runtime
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.planner.pipeline.actions import Schedule, parse_action
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.plan import make_plan, reschedule
from ooodist.util.patience import Patience

STEPS = 2


class NotedTransport(Transport):
    """Notes what is sent and received."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator, Patience(30))
        self.names: list[str] = []

    def send(self, name: str, *arguments: Any, **options: Any) -> Message:
        self.names.append(name)
        return super().send(name, *arguments, **options)

    def receive(self, name: str, *arguments: Any) -> Message:
        self.names.append(name)
        return super().receive(name, *arguments)


class ForwardWork(EmulatedWork):
    """A stage without a backward pass."""

    def input_gradient(
        self, microbatch: int, received: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        raise AssertionError("a stage that does not train was asked for its input gradient")

    def weight_gradient(self, microbatch: int) -> None:
        raise AssertionError("a stage that does not train was asked for its weight gradients")


def run(schedule: Schedule, costs: PipelineCosts, transport: NotedTransport) -> None:
    """Raises AssertionError where it does something else."""
    first = schedule.first_trained
    runtime = Runtime(
        schedule,
        transport,
        {
            stage: (ForwardWork if stage < first else EmulatedWork)(costs.stages[stage])
            for stage, rank in enumerate(schedule.rank_of)
            if rank == transport.rank
        },
        [
            EmulatedBoundary(costs.stages[stage], costs.stages[stage + 1])
            for stage in range(schedule.stages - 1)
        ],
    )
    actions = with_transfers(schedule).actions[transport.rank]
    for _ in range(STEPS):
        transport.names.clear()
        assert tuple(each.action for each in runtime.step()) == actions
        moved = {parse_action(name) for name in transport.names}
        assert len(moved) == len(transport.names)
        assert moved == {action for action in actions if "_" in action.kind}
        assert not any(a.stage < first for a in moved if a.kind == "RECV_B")
        assert not any(a.stage <= first for a in moved if a.kind == "SEND_B")
        assert runtime._there == {}  # nobody has left anything behind


def main(microbatches: int, names: list[str]) -> None:
    world = Communicator.of_all()
    layer = LayerCost("x", 0.002, 0.002, 0.002, update=0.001, sent_bytes=1000)
    layers = ModelCosts((layer,) * (2 * world.size), Link(latency=0.0005))
    transport = NotedTransport(world.duplicate())
    for name in names:
        plan = make_plan(layers, world.size, microbatches, name)
        for first in range(plan.schedule.stages):
            made = reschedule(plan, name, plan.costs, first)
            run(made.schedule, made.costs, transport)
            result = emulate(world, made.schedule, made.costs, steps=STEPS)
            if result is not None:
                assert result.simulated == made.timeline
                orders = [tuple(run.action for run in runs) for runs in result.measured.runs]
                assert tuple(orders) == made.schedule.actions
            print(f"held: {name} from {first}, rank {world.rank}", flush=True)
    transport.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
