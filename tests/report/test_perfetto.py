"""The file for Perfetto, of a timeline made by hand and of a simulated one."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ooodist.planner.costs import Network, SavedTensor
from ooodist.planner.data_parallel.plan import Plan, with_carried
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.profiler.recording.timeline import ExchangeRun, Timeline, UnitRun
from ooodist.profiler.recording.xplane import OpEvent
from ooodist.report.chart import Chart
from ooodist.report.data_parallel.charts import recorded, simulated
from ooodist.report.perfetto import trace_events, write_perfetto
from tests.planner.chains import chain_costs, each_alone


def unit(step: int, name: str, start: float, end: float) -> UnitRun:
    event = OpEvent(name, "MatMul", start, end, "cpu", 1)
    kind: Any = name.partition(":")[0]
    return UnitRun(step, name, kind, start, end, end - start, (event,), (event,))


TIMELINE = Timeline(
    launches=(2,),
    units=(
        unit(0, "F:a", 0, 1),
        unit(0, "dX:a", 1, 2),
        unit(0, "dW:a", 2, 3),
        unit(0, "dW:b", 2.5, 4),
        unit(1, "F:a", 5, 6),
    ),
    exchanges=(
        ExchangeRun(0, "a/kernel", ("a/kernel",), 4000, 3, 4.5, "dW:a", "F:a"),
        ExchangeRun(0, "b/kernel+1", ("b/kernel", "b/bias"), 80, 4, 6, "dW:b", None),
        ExchangeRun(1, "c", ("c",), 8, 7, 8, None, None),
    ),
)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_perfetto([recorded(TIMELINE, first_step=9)], path)
    document = json.loads(path.read_text())
    assert "https://ui.perfetto.dev" in document["otherData"].values()
    assert all(event["pid"] == 0 for event in document["traceEvents"])
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def track_of(events: list[dict[str, Any]], event: dict[str, Any]) -> str:
    (name,) = {
        e["args"]["name"] for e in events if e["name"] == "thread_name" and e["tid"] == event["tid"]
    }
    return str(name)


def test_slices_have_real_times_tracks_and_arguments(events: list[dict[str, Any]]) -> None:
    slices = [e for e in events if e["ph"] == "X"]
    shown = {(track_of(events, e), e["name"], e["args"]["step"], e["ts"], e["dur"]) for e in slices}
    assert shown == {
        ("forward", "F:a", 9, 0, 1e6),
        ("dX (input gradients)", "dX:a", 9, 1e6, 1e6),
        ("dW (weight gradients)", "dW:a", 9, 2e6, 1e6),
        ("dW (weight gradients)", "dW:b", 9, 2.5e6, 1.5e6),
        ("forward", "F:a", 10, 5e6, 1e6),
        ("exchange", "a/kernel", 9, 3e6, 1.5e6),
        ("exchange", "b/kernel+1", 9, 4e6, 2e6),
        ("exchange", "c", 10, 7e6, 1e6),
    }
    (joined,) = [e for e in slices if e["name"] == "b/kernel+1"]
    assert joined["args"] == {"step": 9, "bytes": 80, "weights": ["b/kernel", "b/bias"]}


def test_slices_of_a_thread_do_not_overlap(events: list[dict[str, Any]]) -> None:
    threads: dict[int, list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            threads.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert len(threads) == 6  # two of dW and of exchanges
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_arrows_lead_from_gradient_to_exchange_to_forward(events: list[dict[str, Any]]) -> None:
    def slice_at(event: dict[str, Any]) -> tuple[str, int]:
        (name,) = [
            (e["name"], e["args"]["step"])
            for e in events
            if e["ph"] == "X"
            and e["tid"] == event["tid"]
            and e["ts"] <= event["ts"] <= e["ts"] + e["dur"]
        ]
        return name

    arrows: dict[int, list[tuple[str, tuple[str, int]]]] = {}
    for event in events:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append((event["ph"], slice_at(event)))
    assert list(arrows.values()) == [
        [("s", ("dW:a", 9)), ("t", ("a/kernel", 9)), ("f", ("F:a", 10))],
        [("s", ("dW:b", 9)), ("f", ("b/kernel+1", 9))],
    ]


def test_compressed(tmp_path: Path) -> None:
    write_perfetto([recorded(TIMELINE)], tmp_path / "plain.json")
    write_perfetto([recorded(TIMELINE)], tmp_path / "small.json.gz")
    with gzip.open(tmp_path / "small.json.gz") as file:
        assert json.load(file) == json.loads((tmp_path / "plain.json").read_text())


def test_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_perfetto([recorded(TIMELINE)], tmp_path / "nowhere" / "trace.json")


SIMULATED = chain_costs([1, 2])  # F1 F2 W2 X2 W1, one second each
SIMULATED_KEEPS = replace(SIMULATED, tensors=(SavedTensor(5, "F1", ("W1",)),), base_bytes=3)


def simulated_chart() -> Chart:
    """Two launches of two steps, seven seconds apart."""
    plan = Plan("planned", None, each_alone("w2", "w1"), steps_per_execution=2)
    network = Network("horovod", 2, seconds_per_byte=1.0)
    simulation = Simulator(SIMULATED_KEEPS, network).run(plan)
    calls = [(100.0, 7), (200.0, 9)]
    return simulated(simulation, SIMULATED_KEEPS, network, name="predicted", calls=calls)


def test_simulated_launches_are_shown_where_they_belong() -> None:
    events = trace_events([simulated_chart()])
    slices = [e for e in events if e["ph"] == "X"]
    assert {(track_of(events, e), e["cat"]) for e in slices} == {
        *(("compute", kind) for kind in ("F", "dX", "dW", "update")),
        ("exchange", "exchange"),
    }
    shown = {(e["name"], e["args"]["step"]): (e["ts"], e["dur"]) for e in slices}
    # w2 travels from 3 to 5, w1 from 5 to 6, while F1 waits; F2 of the next step does not wait.
    assert shown["F1", 7] == (100e6, 1e6)
    assert shown["F1", 8] == (106e6, 1e6)
    assert shown["F1", 9] == (200e6, 1e6)
    (exchange,) = [e for e in slices if e["cat"] == "exchange" and e["args"]["step"] == 7][:1]
    assert (exchange["name"], exchange["ts"], exchange["dur"]) == ("w2", 103e6, 2e6)
    assert exchange["args"] == {"step": 7, "bytes": 2, "weights": ["w2"], "waited_ms": 0}


def test_memory_is_a_curve() -> None:
    counters = [e for e in trace_events([simulated_chart()]) if e["ph"] == "C"]
    of_first_step = [(e["ts"] / 1e6 - 100, e["args"]["bytes"]) for e in counters[:3]]
    assert of_first_step == [(0, 3), (1, 8), (5, 3)]
    assert {e["pid"] for e in counters} == {0}


def test_arrows_of_simulated_launches_end_with_the_last() -> None:
    chart = simulated_chart()
    names = [[chart.bars[place].name for place in arrow] for arrow in chart.arrows]
    steps = [[chart.bars[place].details["step"] for place in arrow] for arrow in chart.arrows]
    whole = [["W2", "w2", "F2"], ["W1", "w1", "F1"]]
    assert names == [*whole * 3, ["W2", "w2"], ["W1", "w1"]]
    assert steps[0] == [7, 7, 8]
    assert steps[2] == [8, 8, 9]  # from one launch to the next


def test_a_carried_exchange_is_shown_in_the_call_that_begins_with_it() -> None:
    alone = Plan("planned", ("X2", "W1", "W2"), each_alone("w1", "w2"))
    network = Network("horovod", 2, seconds_per_byte=1.0)
    simulation = Simulator(SIMULATED, network).run(with_carried(alone, ("w2",)))
    calls = [(100.0, 7), (200.0, 8)]
    chart = simulated(simulation, SIMULATED, network, name="predicted", calls=calls)
    shown = [(s.name, s.details["step"], s.start) for s in chart.bars if s.lane == "exchange"]
    assert shown == [("w2", 6, 100.0), ("w1", 7, 105.0), ("w2", 7, 200.0), ("w1", 8, 205.0)]
    names = [
        [(chart.bars[place].name, chart.bars[place].details["step"]) for place in arrow]
        for arrow in chart.arrows
    ]
    # What made the first is not shown.
    assert names == [
        [("w2", 6), ("F2", 7)],
        [("W1", 7), ("w1", 7), ("F1", 8)],
        [("W2", 7), ("w2", 7), ("F2", 8)],
        [("W1", 8), ("w1", 8)],
    ]


def test_processes_side_by_side() -> None:
    events = trace_events([recorded(TIMELINE, name="measured"), simulated_chart()])
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["measured", "predicted"]
    arrows = [(e["id"], e["pid"]) for e in events if e["ph"] == "s"]
    assert len({number for number, _ in arrows}) == len(arrows)
    assert {process for _, process in arrows} == {0, 1}
