"""Compares a plan's prediction with what was measured."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

from ooodist.planner.data_parallel.plan import PlanWithCosts
from ooodist.planner.data_parallel.simulate import Simulation, Simulator
from ooodist.profiler.recording.timeline import Timeline
from ooodist.report.chart import Chart
from ooodist.report.data_parallel.charts import simulated
from ooodist.report.overlap import measure_overlap, simulated_overlap
from ooodist.report.step_trace import Comparison


@dataclass(frozen=True)
class RecordedPlan:
    """The complete calls of a recording, and the plan that they carried out.

    Attributes:
        planned: the plan.
        first_steps: the first step of each complete call, as numbered in the recording.
        timeline: the recording of these calls only.
    """

    planned: PlanWithCosts
    first_steps: tuple[int, ...]
    timeline: Timeline

    @cached_property
    def simulation(self) -> Simulation | None:
        """The prediction; None if the costs are unknown."""
        costs, network = self.planned.costs, self.planned.network
        if costs is None or network is None:
            return None
        return Simulator(costs, network).run(self.planned.plan)

    def predicted_charts(self, *, first_step: int) -> list[Chart]:
        """The prediction to show with the recording; nothing if the costs are unknown.

        Each call begins where the recorded one did, or when the previous predicted one ends.

        Args:
            first_step: the number under which the recording's first step is shown.
        """
        costs, network, simulation = self.planned.costs, self.planned.network, self.simulation
        if costs is None or network is None or simulation is None:
            return []
        calls: list[tuple[float, int]] = []
        for step in self.first_steps:
            begin = min(unit.start for unit in self.timeline.units if unit.step == step)
            if calls:
                begin = max(begin, calls[-1][0] + simulation.launch_seconds)
            calls.append((begin, step + first_step))
        return [simulated(simulation, costs, network, name="predicted", calls=calls)]

    def compare(self, measured_seconds: float, note: str = "") -> Comparison:
        """Compares the plan's prediction with the measured seconds per step."""
        plan, network, simulation = self.planned.plan, self.planned.network, self.simulation
        ideal: float | None
        if network is not None and simulation is not None:
            seconds = simulation.step_seconds
            ideal = simulated_overlap(simulation, network.latency).share
        else:
            assert plan.predicted is not None
            seconds, ideal = plan.predicted.step_seconds, plan.predicted.hidden_share
        shares = f"{measure_overlap(self.timeline).share:.0%} of the exchange hidden"
        if ideal is not None:
            shares += f" (ideal {ideal:.0%})"
        return Comparison(f"plan {plan.name}", seconds, measured_seconds, shares, note)


def recorded_plan(planned: PlanWithCosts | None, timeline: Timeline) -> RecordedPlan | None:
    """What can be compared; None without a prediction, or without a complete call.

    Args:
        planned: what was carried out.
        timeline: the recording. Calls with fewer steps than the plan's are left out: they are the
            remainder at the end of an epoch.
    """
    if planned is None or (planned.costs is None and planned.plan.predicted is None):
        return None
    num_steps = planned.plan.steps_per_execution
    begins = itertools.accumulate(timeline.launches, initial=0)
    whole = [
        step
        for step, size in zip(begins, timeline.launches, strict=False)
        if size == num_steps and any(unit.step == step for unit in timeline.units)
    ]
    if not whole:
        return None
    steps = {step + i for step in whole for i in range(num_steps)}
    kept = replace(
        timeline,
        launches=(num_steps,) * len(whole),
        units=tuple(unit for unit in timeline.units if unit.step in steps),
        exchanges=tuple(run for run in timeline.exchanges if run.step in steps),
    )
    return RecordedPlan(planned, tuple(whole), kept)
