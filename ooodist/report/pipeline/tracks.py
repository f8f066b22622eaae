"""Turns a pipeline step into a process for Perfetto, with a track for each rank.

    rank 0   | 0F0 | 0F1 |           | 0B0     |
    rank 1          \\| 1F0 | 1B0     |/
    exchange of rank 0                 | stage 0 |        (if there are replicas; in a recorded
                                                           step, each bucket by itself)
    memory of rank 0, memory of rank 1   curves

An arrow leads from an action to one on another rank that uses its result.
"""

from __future__ import annotations

from ooodist.planner.pipeline.actions import (
    BACKWARD,
    COMPUTE_KINDS,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
)
from ooodist.planner.pipeline.dependencies import users_of
from ooodist.report.perfetto import Process, Slice
from ooodist.report.pipeline.memory_figure import memory_curves
from ooodist.report.pipeline.outcomes import Simulated

_KINDS = {FORWARD: "F", INPUT_GRADIENT: "dX", WEIGHT_GRADIENT: "dW", BACKWARD: "dX and dW"}
_UPDATE, _EXCHANGE = "update", "exchange"


def pipeline_process(simulated: Simulated, *, number: int, title: str) -> Process:
    """The process of a simulated or measured step.

    Args:
        simulated: the plan and step to show.
        number: the number of the process.
        title: the name of the process.
    """
    timeline = simulated.timeline
    slices: list[Slice] = []
    places: dict[Action, int] = {}
    for rank, (runs, update) in enumerate(zip(timeline.runs, timeline.updates, strict=True)):
        before = 0.0
        for run in runs:
            action = run.action
            places[action] = len(slices)
            details = {
                "stage": action.stage,
                "micro-batch": action.microbatch,
                "waited_ms": (run.start - before) * 1e3,
            }
            slices.append(
                Slice(_track(rank), _KINDS[action.kind], str(action), run.start, run.end, details)
            )
            before = run.end
        if update:
            start = timeline.update_starts[rank]
            slices.append(Slice(_track(rank), _UPDATE, _UPDATE, start, start + update))
        slices += [
            Slice(_exchanges(rank), _EXCHANGE, f"stage {each.stage}", each.start, each.end)
            for each in timeline.exchanges[rank]
        ]
    return Process(
        number=number,
        name=title,
        tracks=tuple(
            track(rank) for rank in range(len(timeline.runs)) for track in (_track, _exchanges)
        ),
        slices=slices,
        arrows=_arrows(simulated, places),
        arrow_name="sent",
        more_memory={
            f"memory of {_track(rank)}": curve
            for rank, curve in enumerate(memory_curves(simulated))
        },
    )


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


def _track(rank: int) -> str:
    return f"rank {rank}"


def _exchanges(rank: int) -> str:
    return f"exchange of {_track(rank)}"
