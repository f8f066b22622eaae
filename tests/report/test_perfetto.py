"""The file for Perfetto, of a timeline made by hand."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from ooodist.report.perfetto import write_perfetto
from ooodist.report.timeline import ExchangeRun, Timeline, UnitRun
from ooodist.report.tracks import recorded
from ooodist.report.xplane import OpEvent


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
    write_perfetto([recorded(TIMELINE, rank=3, first_step=9)], path)
    document = json.loads(path.read_text())
    assert "https://ui.perfetto.dev" in document["otherData"].values()
    assert all(event["pid"] == 3 for event in document["traceEvents"])
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
        ("dX (output gradients)", "dX:a", 9, 1e6, 1e6),
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
