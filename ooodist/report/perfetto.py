"""Writes charts to a file for Perfetto (https://ui.perfetto.dev).

The format is Chrome's trace format: a list of events in JSON. A chart is a process, and a lane a
track of it.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ooodist.report.chart import STYLES, Chart

# By category; names of Chrome's palette, which Perfetto knows.
_COLORS = {
    "F": "good",
    "dX": "bad",
    "dW": "terrible",
    "dX and dW": "bad",
    "update": "generic_work",
    "middle": "grey",
    "exchange": "thread_state_iowait",
}
_MOST_THREADS = 1000  # of a lane

Event = dict[str, Any]


def write_perfetto(charts: Sequence[Chart], path: Path) -> None:
    """Writes a trace; open the file in https://ui.perfetto.dev.

    Args:
        charts: shown one below the other.
        path: ``….json``, or ``….json.gz`` to compress it; overwritten.

    Raises:
        OSError: the file cannot be written.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"open with": "https://ui.perfetto.dev"},
        "traceEvents": trace_events(charts),
    }
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def trace_events(charts: Sequence[Chart]) -> list[Event]:
    """The events of Chrome's trace format; times and durations in microseconds."""
    events: list[Event] = []
    numbers = itertools.count()  # of arrows
    for process, chart in enumerate(charts):
        threads = _threads(chart)
        of_chart = _titles(chart, threads) + _bars(chart, threads)
        for arrow in chart.arrows:
            of_chart += _arrow(chart, threads, arrow, next(numbers))
        for name, curve in chart.curves.items():
            of_chart += [
                {"ph": "C", "name": name, "ts": seconds * 1e6, "args": {"bytes": num_bytes}}
                for seconds, num_bytes in curve
            ]
        process_title = {"ph": "M", "name": "process_name", "args": {"name": chart.name}}
        sort_index = {"ph": "M", "name": "process_sort_index", "args": {"sort_index": process}}
        events += [{**each, "pid": process} for each in (process_title, sort_index, *of_chart)]
    return events


def _threads(chart: Chart) -> list[int]:
    """A thread number for each bar: bars of a lane that overlap in time get
    different threads, as Chrome requires."""
    ends: dict[str, list[float]] = {lane: [] for lane in chart.lanes}
    first = {lane: place * _MOST_THREADS for place, lane in enumerate(chart.lanes, start=1)}
    threads = [0] * len(chart.bars)
    for place in sorted(range(len(threads)), key=lambda place: chart.bars[place].start):
        bar = chart.bars[place]
        of_lane = ends[bar.lane]
        free = (thread for thread, end in enumerate(of_lane) if end <= bar.start)
        thread = next(free, len(of_lane))
        of_lane[thread : thread + 1] = [bar.end]
        threads[place] = first[bar.lane] + thread
    return threads


def _titles(chart: Chart, threads: Sequence[int]) -> list[Event]:
    lanes = {thread: bar.lane for thread, bar in zip(threads, chart.bars, strict=True)}
    return [
        {"ph": "M", "tid": thread, "name": f"thread_{name}", "args": {name: value}}
        for thread, lane in sorted(lanes.items())
        for name, value in (("name", lane), ("sort_index", thread))
    ]


def _bars(chart: Chart, threads: Sequence[int]) -> list[Event]:
    return [
        {
            "ph": "X",
            "name": bar.name,
            "cat": STYLES[bar.kind].category,
            "cname": _COLORS[STYLES[bar.kind].category],
            "tid": thread,
            "ts": bar.start * 1e6,
            "dur": (bar.end - bar.start) * 1e6,
            "args": dict(bar.details),
        }
        for thread, bar in zip(threads, chart.bars, strict=True)
    ]


def _arrow(chart: Chart, threads: Sequence[int], arrow: Sequence[int], number: int) -> list[Event]:
    phases = ["s", *["t"] * (len(arrow) - 2), "f"]
    common = {"id": number, "name": chart.arrow_name, "cat": chart.arrow_name, "bp": "e"}
    # An arrow is attached to the bar that contains its time.
    middles = ((chart.bars[place].start + chart.bars[place].end) / 2 for place in arrow)
    return [
        {**common, "ph": phase, "tid": threads[place], "ts": middle * 1e6}
        for phase, place, middle in zip(phases, arrow, middles, strict=True)
    ]
