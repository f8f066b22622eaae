"""What ranks do, as bars."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given

from ooodist.planner.pipeline.actions import Action, Schedule, from_csv
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.report.pipeline.bars import EXCHANGE, UPDATE, Bar, bars, joins_gradients, lanes
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of


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


def test_the_update_follows_the_exchange() -> None:
    costs = PipelineCosts((StageCost(1, 2, 3, update=4, exchange=5), StageCost(1, 1, 1)))
    simulated = simulated_of((from_csv("0F0,0B0\n1F0,1I0,1W0\n", "x"), costs))
    shown = lanes(simulated)
    assert [lane.title for lane in shown] == ["rank 0", "exchange", "rank 1", "exchange"]
    assert [bar for lane in shown[::2] for bar in lane.bars] == [
        bar for lane in bars(simulated) for bar in lane
    ]
    assert list(shown[1].bars) == [Bar(EXCHANGE, 8, 13)]
    assert shown[0].bars[-1] == Bar(UPDATE, 13, 17)
    assert not shown[3].bars
    alone = replace(costs, stages=(replace(costs.stages[0], exchange=0.0), costs.stages[1]))
    assert [lane.title for lane in lanes(simulated_of((simulated.plan.schedule, alone)))] == [
        *("rank 0", "rank 1")
    ]


def test_which_schedules_join_gradients() -> None:
    assert joins_gradients(simulate(equal_layers(4), 4, 8, "1f1b"))
    assert not joins_gradients(simulate(equal_layers(4), 4, 8, "zb_h1"))
