"""Turns a pipeline step into a chart, with a lane for each rank.

    rank 0   | 0F0 | 0F1 |           | 0B0     |
    rank 1          \\| 1F0 | 1B0     |/
    exchange of rank 0                 | stage 0 |        (if there are replicas; in a recorded
                                                           step, each bucket by itself)
    memory of rank 0, memory of rank 1   curves

An arrow leads from an action to one on another rank that uses its result. If a rank has several
stages, they range from light (the first) to dark (the last).
"""

from __future__ import annotations

from dataclasses import replace

from ooodist.planner.pipeline.actions import COMPUTE_KINDS, Action, Kind
from ooodist.planner.pipeline.dependencies import users_of
from ooodist.planner.pipeline.simulate import Run, saved_bytes
from ooodist.report.chart import Bar, Chart, Curve
from ooodist.report.pipeline.outcomes import Simulated

_DARKEST = 0.4  # darkness of the last of several stages


def pipeline_chart(simulated: Simulated, name: str, title: str = "") -> Chart:
    """The chart of a simulated or measured step.

    Args:
        simulated: the plan and step to show.
        name: shown above the lanes of a trace.
        title: shown above a picture.
    """
    timeline = simulated.timeline
    lanes: dict[str, str] = {}
    bars: list[Bar] = []
    places: dict[Action, int] = {}
    for rank, (runs, update) in enumerate(zip(timeline.runs, timeline.updates, strict=True)):
        lane, exchange = f"rank {rank}", f"exchange of rank {rank}"
        lanes[lane] = lane
        before = 0.0
        for run in runs:
            places[run.action] = len(bars)
            bars.append(_bar(run, lane, run.start - before, simulated))
            before = run.end
        if update:  # one that takes no time is none
            start = timeline.update_starts[rank]
            bars.append(Bar(lane, "update", "update", start, start + update))
        if any(timeline.exchanges):
            lanes[exchange] = "exchange"
        bars += [
            Bar(exchange, "exchange", f"stage {each.stage}", each.start, each.end)
            for each in timeline.exchanges[rank]
        ]
    return Chart(
        name,
        lanes,
        bars,
        title,
        label_names=("micro-batch", "stage") if simulated.chunks > 1 else ("micro-batch",),
        arrows=_arrows(simulated, places),
        arrow_name="sent",
        curves={
            f"memory of rank {rank}": curve for rank, curve in enumerate(memory_curves(simulated))
        },
        marks=[(simulated.seconds, "")],
    )


def memory_curves(simulated: Simulated) -> list[Curve]:
    """Finds for each rank points (seconds, bytes kept from then on) over the whole step."""
    costs = simulated.plan.costs
    curves: list[Curve] = []
    saved_of = saved_bytes(simulated.plan.schedule, costs)
    for runs, saved in zip(simulated.timeline.runs, saved_of, strict=True):
        curve: list[tuple[float, int]] = []
        for run, during in zip(runs, saved, strict=True):
            begin, end = costs.stages[run.action.stage].saved_bytes(run.action.kind)
            if not curve:
                curve.append((0.0, during - begin))
            curve += [(run.start, during), (run.end, during + end)]
        curve.append((simulated.seconds, curve[-1][1] if curve else 0))
        curves.append(curve)
    return curves


def _bar(run: Run, lane: str, waited: float, simulated: Simulated) -> Bar:
    stage, kind, microbatch = run.action
    labels: tuple[str, ...] = (str(microbatch),)
    darkness = 0.0
    if simulated.chunks > 1:
        labels += (str(stage),)
        rank_of = simulated.plan.schedule.rank_of
        before = rank_of[:stage].count(rank_of[stage])
        darkness = _DARKEST * before / (simulated.chunks - 1)
    details = {"stage": stage, "micro-batch": microbatch, "waited_ms": waited * 1e3}
    bar = Bar(lane, kind, str(run.action), run.start, run.end, labels, details, darkness)
    if kind != Kind.B:
        return bar
    costs = simulated.plan.costs.stages[stage]
    middle = min(run.end, run.start + costs.input_gradient)
    parts = (replace(bar, kind="I", end=middle), replace(bar, kind="W", start=middle))
    return replace(bar, parts=parts)


def _arrows(simulated: Simulated, places: dict[Action, int]) -> list[tuple[int, int]]:
    """Arrows from each F, I and B to the action on another rank that uses its result."""
    rank_of = simulated.plan.schedule.rank_of
    arrows = []
    for action, place in places.items():
        stage, kind, microbatch = action
        users = (
            Action(user, waiting, microbatch)
            for user, waiting in users_of(stage, kind, len(rank_of), kinds=COMPUTE_KINDS)
            if rank_of[user] != rank_of[stage]
        )
        arrows += [(place, places[user]) for user in users if user in places]
    return arrows
