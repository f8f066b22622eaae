"""Emulates a pipeline on ranks that wait instead of computing, to time a cluster one does not have.

Schedule, runtime, MPI and messages are real, with the sizes given by the costs; only the computing
is a wait, and the links are slowed down. A wait occupies no core, so many ranks fit on few cores::

    compute    | sleeps                |.|     the last moment is a busy wait: sleeps end late
    thread      recv -----> send ----->

TensorFlow is not imported: sixteen processes of it would keep two cores busy for minutes.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ooodist.pipeline.runtime.runtime import Runtime
from ooodist.pipeline.runtime.transport import Transport
from ooodist.planner.pipeline.actions import COMPUTE_KINDS, Kind, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.simulate import (
    MeasuredRun,
    PipelineTimeline,
    Run,
    exchanges_of,
    peak_bytes,
    simulate_pipeline,
)
from ooodist.util.patience import Patience

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator

STEPS = 10  # timed steps
AWAKE_SECONDS = 200e-6  # busy wait before a deadline; a sleep may end late by this much


def wait_until(deadline: float) -> None:
    """Waits until this time of ``time.perf_counter()``, or some microseconds later."""
    while (left := deadline - time.perf_counter()) > 0:
        if left > AWAKE_SECONDS:
            time.sleep(left - AWAKE_SECONDS)


class EmulatedWork:
    """A stage that waits as long as its computation would take.

    Args:
        cost: the costs of the stage.
    """

    def __init__(self, cost: StageCost) -> None:
        self._cost = cost

    def forward(self, microbatch: int, received: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        wait_until(time.perf_counter() + self._cost.forward)
        return ()

    def input_gradient(
        self, microbatch: int, received: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        wait_until(time.perf_counter() + self._cost.input_gradient)
        return ()

    def weight_gradient(self, microbatch: int) -> None:
        wait_until(time.perf_counter() + self._cost.weight_gradient)


class EmulatedBoundary:
    """Messages of the right size without content, over links as fast as the costs say.

    Args:
        before: cost of the stage that sends forward.
        behind: cost of the stage that sends back.
    """

    def __init__(self, before: StageCost, behind: StageCost) -> None:
        self._before, self._behind = before, behind
        self._sent = np.zeros(before.sent_bytes, np.uint8)  # the content of every message
        self._free: list[np.ndarray] = []  # receive buffers that can be reused

    def receive_buffers(self, kind: str) -> Sequence[np.ndarray]:
        return [self._free.pop() if self._free else np.empty_like(self._sent)]

    def pack(self, kind: str, values: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [self._sent]

    def unpack(self, kind: str, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self._free += arrays
        return ()

    def link_seconds(self, kind: str) -> float:
        if kind == Kind.F:
            return self._before.send_seconds
        return self._behind.send_back_seconds


def stretched(costs: PipelineCosts, factor: float) -> PipelineCosts:
    """The costs of devices and links that take ``factor`` times as long."""
    seconds = [field.name for field in fields(StageCost) if isinstance(field.default, float)]
    return replace(
        costs,
        stages=tuple(
            replace(stage, **{name: getattr(stage, name) * factor for name in seconds})
            for stage in costs.stages
        ),
    )


@dataclass(frozen=True)
class Emulation:
    """The measured and simulated steps of a schedule.

    Attributes:
        schedule: the schedule that was carried out.
        simulated: the step in simulation.
        seconds: seconds of each timed step.
        measured: a step of median length.
        overhead: seconds that an action of the runtime adds to its cost: the median over all F, I
            and W, each with its sends and receives, without waiting for messages.
    """

    schedule: Schedule
    simulated: PipelineTimeline
    seconds: tuple[float, ...]
    measured: PipelineTimeline
    overhead: float

    @property
    def median(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        """The relative error of the simulated step."""
        return self.simulated.step_seconds / self.median - 1


def emulate(
    world: Communicator,
    schedule: Schedule,
    costs: PipelineCosts,
    *,
    steps: int = STEPS,
    warm_up: int = 1,
    timeout: float | None = None,
) -> Emulation | None:
    """Carries out some steps. All ranks call it.

    Args:
        world: the ranks of the schedule.
        schedule: the same on all ranks.
        costs: costs of its stages.
        steps: number of timed steps.
        warm_up: number of steps before them, in which MPI connects the ranks.
        timeout: seconds that a rank waits for a message; None: 60.

    Returns:
        what was measured, on rank 0; None on the others.

    Raises:
        UserError: MPI has no MPI_THREAD_MULTIPLE, or a message does not come in time (Stalled).
    """
    timed = []
    with _emulated(world, schedule, costs, timeout) as step:
        for _ in range(warm_up + steps):
            _meet(world)
            timed.append(step())
    timed = timed[warm_up:]
    times = _gather(world, schedule, [_times(ran, seconds) for ran, seconds in timed])
    return None if times is None else summarize(schedule, costs, times)


@contextlib.contextmanager
def _emulated(
    world: Communicator, schedule: Schedule, costs: PipelineCosts, timeout: float | None
) -> Iterator[Callable[[], tuple[Sequence[MeasuredRun], float]]]:
    """Yields what runs a step; it returns this rank's actions and its seconds."""
    communicator = world.duplicate()
    transport = Transport(communicator, Patience(timeout))
    try:
        own = [stage for stage, rank in enumerate(schedule.rank_of) if rank == world.rank]
        runtime = Runtime(
            schedule,
            transport,
            {stage: EmulatedWork(costs.stages[stage]) for stage in own},
            [
                EmulatedBoundary(costs.stages[stage], costs.stages[stage + 1])
                for stage in range(schedule.stages - 1)
            ],
        )
        yield lambda: _timed_step(runtime, own, costs)
    finally:
        transport.close()
    communicator.free()


def _meet(world: Communicator) -> None:
    """Waits until all ranks are ready."""
    world.barrier()
    # Short, and all leave it at nearly the same moment.
    world.begin_sum(np.zeros(1)).wait_awake()


def _timed_step(
    runtime: Runtime, own: Sequence[int], costs: PipelineCosts
) -> tuple[Sequence[MeasuredRun], float]:
    """Runs a step; returns this rank's actions and its seconds.

    Exchanges with replicas, which there are not, and updates are waited for.
    """
    begin = time.perf_counter()
    ran = runtime.step()
    exchanges = exchanges_of([Run(each.action, each.start, each.end) for each in ran], costs)
    for last in exchanges[-1:]:
        wait_until(begin + last.end)
    wait_until(time.perf_counter() + sum(costs.stages[stage].update for stage in own))
    return ran, time.perf_counter() - begin


def _times(ran: Sequence[MeasuredRun], seconds: float) -> np.ndarray:
    """The times of one step in the form that :func:`summarize` takes."""
    return np.array([*((each.start, each.end, each.waited) for each in ran), (seconds, 0, 0)])


def _gather(
    world: Communicator, schedule: Schedule, times: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Gathers each rank's times on rank 0, each of shape (steps, actions + 1, 3)."""
    own = np.stack(times)
    if world.rank:
        world.send([own], 0).wait()
        return None
    all_times = [own]
    for rank, actions in enumerate(with_transfers(schedule).actions[1:], 1):
        received = np.empty((len(times), len(actions) + 1, 3))
        world.receive([received], rank).wait()
        all_times.append(received)
    return all_times


def summarize(schedule: Schedule, costs: PipelineCosts, times: Sequence[np.ndarray]) -> Emulation:
    """Compares what was measured with the simulation.

    Args:
        schedule: the schedule that was carried out.
        costs: costs of its stages.
        times: for each rank, shape (steps, actions + 1, 3): start, end and wait of each action,
            transfers included, in seconds from the beginning of the step; the last row has the
            seconds of the step.
    """
    seconds = np.max([each[:, -1, 0] for each in times], axis=0)
    median = int(np.argsort(seconds)[len(seconds) // 2])
    simulated = simulate_pipeline(schedule, costs)
    runs, overheads = [], []
    for actions, of_rank in zip(with_transfers(schedule).actions, times, strict=True):
        computing = [number for number, a in enumerate(actions) if a.kind in COMPUTE_KINDS]
        runs.append(
            tuple(Run(actions[at], *map(float, of_rank[median, at, :2])) for at in computing)
        )
        asked = np.array(
            [costs.stages[actions[at].stage].seconds(actions[at].kind) for at in computing]
        )
        ends = of_rank[:, computing, 1]
        waited = np.cumsum(of_rank[:, :-1, 2], axis=1)[:, computing]
        overheads.append(np.diff(ends - waited, axis=1, prepend=0.0) - asked)
    return Emulation(
        schedule=schedule,
        simulated=simulated,
        seconds=tuple(map(float, seconds)),
        measured=PipelineTimeline(
            tuple(runs),
            peak_bytes(schedule, costs),
            simulated.updates,
            tuple(exchanges_of(each, costs) for each in runs),
        ),
        overhead=float(np.median(np.concatenate([each.ravel() for each in overheads]))),
    )
