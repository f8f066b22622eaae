"""Charts of pipelines: their bars, and the file for Perfetto."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from ooodist.planner.pipeline.actions import Schedule, from_csv, parse_action
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.report.chart import Bar
from ooodist.report.grid import time_grid
from ooodist.report.perfetto import trace_events
from ooodist.report.pipeline.charts import memory_curves, pipeline_chart
from ooodist.report.pipeline.outcomes import Simulated
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of

EXAMPLE = simulate(equal_layers(2, update=0.5, kept=10), 2, 3, "1f1b")


def test_slices_have_the_durations_of_the_simulation() -> None:
    events = trace_events([pipeline_chart(EXAMPLE, "1f1b")])
    slices = {e["name"]: e for e in events if e["ph"] == "X" and e["name"] != "update"}
    assert len(slices) == 12
    for runs in EXAMPLE.timeline.runs:
        for run in runs:
            event = slices[str(run.action)]
            assert (event["ts"], event["dur"]) == (run.start * 1e6, (run.end - run.start) * 1e6)
            assert event["args"]["stage"] == run.action.stage
            assert event["args"]["micro-batch"] == run.action.microbatch
    # F0 F1, two seconds of waiting for the other rank, and B0
    assert (slices["0B0"]["cat"], slices["0B0"]["args"]["waited_ms"]) == ("dX and dW", 2000)
    assert [(e["ts"], e["dur"]) for e in events if e["name"] == "update"] == [
        *((12e6, 0.5e6), (10e6, 0.5e6))
    ]
    assert {e["pid"] for e in events} == {0}


def test_exchanges_have_tracks_and_updates_follow_them() -> None:
    costs = equal_layers(2, update=0.5, link=Link(0.25), replicas=2)
    simulated = simulate(costs, 2, 3, "zb_h1")
    chart = pipeline_chart(simulated, "")
    for rank, exchanges in enumerate(simulated.timeline.exchanges):
        those = [each for each in chart.bars if each.lane == f"exchange of rank {rank}"]
        assert [(each.name, each.kind, each.start, each.end) for each in those] == [
            (f"stage {each.stage}", "exchange", each.start, each.end) for each in exchanges
        ]
        (update,) = [
            each for each in chart.bars if (each.lane, each.kind) == (f"rank {rank}", "update")
        ]
        assert update.start == exchanges[-1].end


def test_a_track_a_rank() -> None:
    events = trace_events([pipeline_chart(EXAMPLE, "my schedule")])
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["rank 0", "rank 1"]
    for event in events:
        if event["ph"] == "X" and event["name"] != "update":
            assert names[event["tid"]] == f"rank {event['args']['stage']}"
    (title,) = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert title == "my schedule"


@given(pipelines())
def test_slices_of_a_rank_do_not_overlap(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    chart = pipeline_chart(simulated_of(pipeline), "")
    for lane in chart.lanes:
        those = [item for item in chart.bars if item.lane == lane]
        assert all(one.end <= other.start for one, other in itertools.pairwise(those))
    assert len(chart.bars) >= sum(map(len, pipeline[0].actions))


@given(pipelines())
def test_an_arrow_for_whatever_is_sent(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    schedule, _ = pipeline
    chart = pipeline_chart(simulated_of(pipeline), "")
    crossings = sum(one != other for one, other in itertools.pairwise(schedule.rank_of))
    assert len(chart.arrows) == 2 * crossings * schedule.microbatches
    for source, target in chart.arrows:
        sender, user = chart.bars[source], chart.bars[target]
        assert sender.end <= user.start
        assert sender.lane != user.lane
        one, other = parse_action(sender.name), parse_action(user.name)
        assert one.microbatch == other.microbatch
        assert other.stage - one.stage == (1 if one.kind == "F" else -1)
        assert (one.kind == "F") == (other.kind == "F")


def test_arrows_are_named_and_hang_on_their_slices() -> None:
    events = trace_events([pipeline_chart(EXAMPLE, "")])

    def slice_at(event: dict[str, Any]) -> str:
        (name,) = [
            e["name"]
            for e in events
            if e["ph"] == "X"
            and e["tid"] == event["tid"]
            and e["ts"] < event["ts"] < e["ts"] + e["dur"]
        ]
        return str(name)

    assert {e["name"] for e in events if e["ph"] in "sf"} == {"sent"}
    arrows: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(slice_at(event))
    forward = [[f"0F{number}", f"1F{number}"] for number in range(3)]
    backward = [[f"1B{number}", f"0B{number}"] for number in range(3)]
    assert sorted(arrows.values()) == sorted(forward + backward)


def test_memory_of_each_rank_is_a_curve() -> None:
    events = trace_events([pipeline_chart(EXAMPLE, "")])
    for rank, curve in enumerate(memory_curves(EXAMPLE)):
        shown = [
            (e["ts"] / 1e6, e["args"]["bytes"])
            for e in events
            if e["ph"] == "C" and e["name"] == f"memory of rank {rank}"
        ]
        assert shown == curve
    assert max(e["args"]["bytes"] for e in events if e["ph"] == "C") == 20


def test_stages_of_one_rank_send_nothing() -> None:
    """In a V the last rank has two stages in a row."""
    costs = equal_layers(4, link=Link(0.25))
    chart = pipeline_chart(simulate(costs, 2, 3, "zb_v"), "")
    names = [[chart.bars[place].name for place in arrow] for arrow in chart.arrows]
    assert ["0F0", "1F0"] in names
    assert ["2F0", "3F0"] in names
    assert ["1F0", "2F0"] not in names


def bars_of(simulated: Simulated) -> list[list[Bar]]:
    """What pictures and texts show on the lane of each rank."""
    lanes = pipeline_chart(simulated, "").by_lane()
    return [lanes[f"rank {rank}"] for rank in range(len(simulated.timeline.runs))]


def titles_of(simulated: Simulated) -> list[str]:
    return list(pipeline_chart(simulated, "").lanes.values())


@given(pipelines())
def test_busy_and_idle_are_the_step(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    simulated = simulated_of(pipeline)
    assert pipeline_chart(simulated, "").seconds == simulated.seconds
    timeline = simulated.timeline
    for rank, lane in enumerate(bars_of(simulated)):
        edges = [0.0, *(edge for bar in lane for edge in (bar.start, bar.end)), simulated.seconds]
        assert edges == sorted(edges)
        busy = sum(bar.end - bar.start for bar in lane)
        assert busy == pytest.approx(timeline.busy[rank] + timeline.updates[rank])
        idle = sum(after - before for before, after in zip(edges[::2], edges[1::2], strict=True))
        assert busy + idle == pytest.approx(simulated.seconds)


@given(pipelines())
def test_each_kind_takes_what_it_costs(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    schedule, costs = pipeline
    all_bars = list(itertools.chain(*bars_of(simulated_of(pipeline))))
    for stage, cost in enumerate(costs.stages):
        for kind, seconds in (
            ("F", cost.forward),
            ("I", cost.input_gradient),
            ("W", cost.weight_gradient),
        ):
            those = [
                bar
                for bar in all_bars
                if bar.kind == kind and parse_action(bar.name).stage == stage
            ]
            microbatches = [parse_action(bar.name).microbatch for bar in those]
            assert sorted(microbatches) == list(range(schedule.microbatches))
            assert [bar.labels[0] for bar in those] == [str(number) for number in microbatches]
            assert [bar.end - bar.start for bar in those] == pytest.approx([seconds] * len(those))


def test_by_hand() -> None:
    costs = PipelineCosts((StageCost(1, 2, 3, update=4), StageCost(1, 1, 1)))
    schedule = from_csv("0F0,0B0\n1F0,1I0,1W0\n", "x")
    simulated = simulated_of((schedule, costs))
    first, second = bars_of(simulated)
    assert [(bar.kind, bar.start, bar.end, bar.name) for bar in first] == [
        ("F", 0, 1, "0F0"),
        ("I", 3, 5, "0B0"),
        ("W", 5, 8, "0B0"),
        ("update", 8, 12, "update"),
    ]
    assert [(bar.kind, bar.start, bar.end) for bar in second] == [
        *(("F", 1, 2), ("I", 2, 3), ("W", 3, 4))
    ]
    assert "I and W are one action here (B)" in time_grid(pipeline_chart(simulated, ""))


def test_the_update_follows_the_exchange() -> None:
    costs = PipelineCosts((StageCost(1, 2, 3, update=4, exchange=5), StageCost(1, 1, 1)))
    simulated = simulated_of((from_csv("0F0,0B0\n1F0,1I0,1W0\n", "x"), costs))
    assert titles_of(simulated) == ["rank 0", "exchange", "rank 1", "exchange"]
    first, exchange, _, none = pipeline_chart(simulated, "").by_lane().values()
    assert [(bar.kind, bar.start, bar.end) for bar in exchange] == [("exchange", 8, 13)]
    assert (first[-1].kind, first[-1].start, first[-1].end) == ("update", 13, 17)
    assert not none
    alone = replace(costs, stages=(replace(costs.stages[0], exchange=0.0), costs.stages[1]))
    assert titles_of(simulated_of((simulated.plan.schedule, alone))) == ["rank 0", "rank 1"]


def test_which_schedules_join_gradients() -> None:
    for name, joined in (("1f1b", True), ("zb_h1", False)):
        grid = time_grid(pipeline_chart(simulate(equal_layers(4), 4, 8, name), ""))
        assert ("I and W are one action here (B)" in grid) == joined
