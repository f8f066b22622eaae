"""The file for Perfetto of simulated pipelines."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given

from ooodist.planner.pipeline.actions import Schedule, parse_action
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.report.perfetto import trace_events
from ooodist.report.pipeline.memory_figure import memory_curves
from ooodist.report.pipeline.tracks import pipeline_process
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of

EXAMPLE = simulate(equal_layers(2, update=0.5, kept=10), 2, 3, "1f1b")


def test_slices_have_the_durations_of_the_simulation() -> None:
    events = trace_events([pipeline_process(EXAMPLE, number=3, title="1f1b")])
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
    assert {e["pid"] for e in events} == {3}


def test_exchanges_have_tracks_and_updates_follow_them() -> None:
    costs = equal_layers(2, update=0.5, link=Link(0.25), replicas=2)
    simulated = simulate(costs, 2, 3, "zb_h1")
    process = pipeline_process(simulated, number=0, title="")
    for rank, exchanges in enumerate(simulated.timeline.exchanges):
        those = [each for each in process.slices if each.track == f"exchange of rank {rank}"]
        assert [(each.name, each.kind, each.start, each.end) for each in those] == [
            (f"stage {each.stage}", "exchange", each.start, each.end) for each in exchanges
        ]
        (update,) = [
            each for each in process.slices if (each.track, each.kind) == (f"rank {rank}", "update")
        ]
        assert update.start == exchanges[-1].end


def test_a_track_a_rank() -> None:
    events = trace_events([pipeline_process(EXAMPLE, number=0, title="my schedule")])
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["rank 0", "rank 1"]
    for event in events:
        if event["ph"] == "X" and event["name"] != "update":
            assert names[event["tid"]] == f"rank {event['args']['stage']}"
    (title,) = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert title == "my schedule"


@given(pipelines())
def test_slices_of_a_rank_do_not_overlap(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    process = pipeline_process(simulated_of(pipeline), number=0, title="")
    for track in process.tracks:
        those = [item for item in process.slices if item.track == track]
        assert all(one.end <= other.start for one, other in itertools.pairwise(those))
    assert len(process.slices) >= sum(map(len, pipeline[0].actions))


@given(pipelines())
def test_an_arrow_for_whatever_is_sent(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    schedule, _ = pipeline
    process = pipeline_process(simulated_of(pipeline), number=0, title="")
    crossings = sum(one != other for one, other in itertools.pairwise(schedule.rank_of))
    assert len(process.arrows) == 2 * crossings * schedule.microbatches
    for source, target in process.arrows:
        sender, user = process.slices[source], process.slices[target]
        assert sender.end <= user.start
        assert sender.track != user.track
        one, other = parse_action(sender.name), parse_action(user.name)
        assert one.microbatch == other.microbatch
        assert other.stage - one.stage == (1 if one.kind == "F" else -1)
        assert (one.kind == "F") == (other.kind == "F")


def test_arrows_are_named_and_hang_on_their_slices() -> None:
    events = trace_events([pipeline_process(EXAMPLE, number=0, title="")])

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
    events = trace_events([pipeline_process(EXAMPLE, number=0, title="")])
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
    process = pipeline_process(simulate(costs, 2, 3, "zb_v"), number=0, title="")
    names = [[process.slices[place].name for place in arrow] for arrow in process.arrows]
    assert ["0F0", "1F0"] in names
    assert ["2F0", "3F0"] in names
    assert ["1F0", "2F0"] not in names
