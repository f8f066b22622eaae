"""Ranks that wait instead of computing: ``mpirun -np 4 python worker.py ...``.

::

    measure M S ...         steps of M micro-batches under each of the schedules S, until they are
                            as simulated; with zb_h2, also without a barrier between them;
                            rank 0 prints a line for each
    program ARGUMENTS       python -m ooodist.train ARGUMENTS; says if TensorFlow was imported
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import ClassVar

from mpi4py import MPI

from ooodist import train
from ooodist.emulation import emulate as emulation
from ooodist.emulation.emulate import Emulation, emulate
from ooodist.engines.communicator import Communicator
from ooodist.pipeline.runtime import runtime
from ooodist.planner.pipeline.actions import COMPUTE_KINDS, Action, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.named.schedules import zero_bubble_h2
from ooodist.planner.pipeline.plan import PipelinePlan, make_plan
from ooodist.planner.pipeline.simulate import (
    MeasuredRun,
    PipelineTimeline,
    Run,
    exchanges_of,
    pipeline_period,
    simulate_pipeline,
)
from tests.pipeline.lateness import lateness, step_with

Step = tuple[float, list[MeasuredRun]]  # when it began, and what was done in it

STEPS = 3
TRIES = 12  # of so many steps; one is enough where nothing else runs
MOST_ADDED = 0.03  # of a step
MOST_OVERHEAD = 0.5e-3  # seconds of an action


class Recorded(runtime.Runtime):
    """Keeps when its steps began and what was done then."""

    steps: ClassVar[list[Step]] = []

    def step(self, after_forward: Callable[[], None] = lambda: None) -> list[MeasuredRun]:
        begin = time.perf_counter()
        ran = super().step(after_forward)
        self.steps.append((begin, ran))
        return ran


def costs(layers: int) -> ModelCosts:
    """Layers that differ, an update, and links that take longer than a forward pass; of one of two
    pipelines."""
    return ModelCosts(
        tuple(
            LayerCost(
                f"layer_{number}",
                forward=0.006 + 0.001 * (number % 3),
                input_gradient=0.008,
                weight_gradient=0.005,
                update=0.002,
                sent_bytes=100_000 + number,
                exchanged_bytes=50_000 * (1 + number % 2),
            )
            for number in range(layers)
        ),
        Link(latency=0.001, seconds_per_byte=8e-8),
        replicas=2,
    )


def measure(microbatches: int, names: list[str]) -> None:
    world = Communicator.of_all()
    emulation.Runtime = Recorded  # type: ignore[misc]
    for name in names:
        plan = make_plan(costs(2 * world.size), world.size, microbatches, name)
        late: list[dict[Action, float]] = []  # of all steps
        for _ in range(TRIES):
            Recorded.steps.clear()
            result = emulate(world, plan.schedule, plan.costs, steps=STEPS)
            steps = world.comm.gather(Recorded.steps[-STEPS:])
            wrong = None
            if world.rank:
                assert result is None
            else:
                check_result(plan, result, steps)
                late += all_lateness(plan, steps)
                wrong = what_is_wrong(plan, least(late))
            wrong = world.comm.bcast(wrong)
            if wrong is None:
                break
        assert wrong is None, f"{name}: {wrong}"
        if world.rank == 0:
            print(f"{name} is as simulated", flush=True)


def measure_period(microbatches: int) -> None:
    """ZB-H2 has no bubble left where a step begins as soon as the rank is done with the last."""
    world = Communicator.of_all()
    cost = StageCost(forward=0.02, input_gradient=0.02, weight_gradient=0.02, sent_bytes=1000)
    equal = PipelineCosts((cost,) * world.size)
    schedule = zero_bubble_h2(world.size, microbatches)
    from_barrier = simulate_pipeline(schedule, equal).step_seconds
    predicted = pipeline_period(schedule, equal)
    assert from_barrier - predicted > 2 * MOST_ADDED * predicted
    measured = []
    for _ in range(TRIES):
        measured.append(emulated_period(schedule, equal))
        if measured[-1] < (1 + MOST_ADDED) * predicted:  # the same on all ranks
            break
    assert (1 - 1e-3) * predicted < min(measured) < (1 + MOST_ADDED) * predicted, measured
    if world.rank == 0:
        print(f"a period of {min(measured):.4f} s is as simulated", flush=True)


def emulated_period(schedule: Schedule, costs: PipelineCosts) -> float:
    """The seconds of a step among many; the first steps, one for each rank, do not count."""
    world = Communicator.of_all()
    with emulation._emulated(world, schedule, costs, None) as step:
        emulation._meet(world)
        for _ in range(world.size):
            step()
        seconds = sum(step()[1] for _ in range(STEPS)) / STEPS
    return float(world.comm.allreduce(seconds, MPI.MAX))


def check_result(plan: PipelinePlan, result: Emulation | None, steps: list[list[Step]]) -> None:
    """What is said of the steps is what happened. ``steps``: of each rank."""
    assert result is not None
    assert result.simulated == plan.timeline
    orders = tuple(tuple(run.action for run in runs) for runs in result.measured.runs)
    assert orders == plan.schedule.actions
    by_step = [
        tuple(
            tuple(Run(each.action, each.start, each.end) for each in ran if is_computed(each))
            for _, ran in of_ranks
        )
        for of_ranks in zip(*steps, strict=True)
    ]
    assert result.measured.runs in by_step
    for seconds, runs in zip(result.seconds, by_step, strict=True):
        exchanges = tuple(exchanges_of(each, plan.costs) for each in runs)
        assert all(exchanges)
        timeline = PipelineTimeline(runs, (), plan.timeline.updates, exchanges)
        assert seconds >= timeline.step_seconds
    assert result.overhead > 0


def all_lateness(plan: PipelinePlan, steps: list[list[Step]]) -> list[dict[Action, float]]:
    """Of each step."""
    return [
        lateness(
            plan.schedule,
            plan.costs,
            [begin for begin, _ in of_ranks],
            {
                each.action: begin + each.end
                for begin, ran in of_ranks
                for each in ran
                if is_computed(each)
            },
        )
        for of_ranks in zip(*steps, strict=True)
    ]


def is_computed(ran: MeasuredRun) -> bool:
    return ran.action.kind in COMPUTE_KINDS


def least(late: list[dict[Action, float]]) -> dict[Action, float]:
    """Of each action, over some steps."""
    return {action: min(each[action] for each in late) for action in late[0]}


def what_is_wrong(plan: PipelinePlan, late: dict[Action, float]) -> str | None:
    """Of steps whose actions were so late at least: never early, and little later."""
    early = min(late.values())
    assert early >= 0, f"an action ended {-early} s before it could"
    overhead = statistics.fmean(late.values())
    step = step_with(plan.schedule, plan.costs, late)
    added = step.step_seconds / plan.timeline.step_seconds - 1
    waited = step.bubble - plan.timeline.bubble
    if overhead < MOST_OVERHEAD and added < MOST_ADDED and abs(waited) < MOST_ADDED:
        return None
    return f"{overhead} s an action, {added:.1%} of a step, {waited:.1%} more of it waited"


def program(arguments: list[str]) -> int:
    logging.basicConfig(format="ooodist: %(message)s")
    code = train.main(arguments)
    heavy = {"tensorflow", "keras"} & set(sys.modules)
    print(f"imported: {sorted(heavy)}", flush=True)
    # Who ended alone would be ended by mpirun, with whatever others have to say.
    time.sleep(0.2)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(int(sys.argv[2]), sys.argv[3:])
        if "zb_h2" in sys.argv[3:]:
            measure_period(int(sys.argv[2]))
    else:
        sys.exit(program(sys.argv[2:]))
