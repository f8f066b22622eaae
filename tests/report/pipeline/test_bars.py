"""What ranks do, as bars."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings

from ooodist.planner.pipeline.actions import Action, Schedule, from_csv
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.report.pipeline.bars import UPDATE, bars, joins_gradients
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of


@settings(deadline=None)
@given(pipelines())
def test_busy_and_idle_are_the_step(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    simulated = simulated_of(pipeline)
    timeline = simulated.timeline
    for rank, lane in enumerate(bars(simulated)):
        edges = [0.0, *(edge for bar in lane for edge in (bar.start, bar.end)), simulated.seconds]
        assert edges == sorted(edges)
        busy = sum(bar.end - bar.start for bar in lane)
        assert busy == pytest.approx(timeline.busy[rank] + timeline.updates[rank])
        idle = sum(after - before for before, after in zip(edges[::2], edges[1::2], strict=True))
        assert busy + idle == pytest.approx(simulated.seconds)


@settings(deadline=None)
@given(pipelines())
def test_each_kind_takes_what_it_costs(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    schedule, costs = pipeline
    all_bars = list(itertools.chain(*bars(simulated_of(pipeline))))
    for stage, cost in enumerate(costs.stages):
        for kind, seconds in (
            ("F", cost.forward),
            ("I", cost.input_gradient),
            ("W", cost.weight_gradient),
        ):
            those = [
                bar
                for bar in all_bars
                if bar.action and (bar.action.stage, bar.kind) == (stage, kind)
            ]
            assert sorted(bar.action.microbatch for bar in those if bar.action) == list(
                range(schedule.microbatches)
            )
            assert [bar.end - bar.start for bar in those] == pytest.approx([seconds] * len(those))


def test_by_hand() -> None:
    costs = PipelineCosts((StageCost(1, 2, 3, update=4), StageCost(1, 1, 1)))
    schedule = from_csv("0F0,0B0\n1F0,1I0,1W0\n", "x")
    simulated = simulated_of((schedule, costs))
    first, second = bars(simulated)
    assert [(bar.kind, bar.start, bar.end, bar.action) for bar in first] == [
        ("F", 0, 1, Action(0, "F", 0)),
        ("I", 3, 5, Action(0, "B", 0)),
        ("W", 5, 8, Action(0, "B", 0)),
        (UPDATE, 8, 12, None),
    ]
    assert [(bar.kind, bar.start, bar.end) for bar in second] == [
        *(("F", 1, 2), ("I", 2, 3), ("W", 3, 4))
    ]
    assert joins_gradients(simulated)


def test_which_schedules_join_gradients() -> None:
    assert joins_gradients(simulate(equal_layers(4), 4, 8, "1f1b"))
    assert not joins_gradients(simulate(equal_layers(4), 4, 8, "zb_h1"))
