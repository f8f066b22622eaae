"""Writes tracks, slices and arrows to a file for Perfetto (https://ui.perfetto.dev).

The format is Chrome's trace format: a list of events in JSON. Their content is made in the modules
``tracks`` of report/data_parallel and report/pipeline.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Names of Chrome's palette, which Perfetto knows.
_COLORS = {
    "F": "good",
    "dX": "bad",
    "dW": "terrible",
    "dX and dW": "bad",
    "update": "generic_work",
    "middle": "grey",
    "exchange": "thread_state_iowait",
}
_LANES_PER_TRACK = 1000


@dataclass(frozen=True)
class Slice:
    """A bar on a track.

    Attributes:
        track: one of the tracks of its process.
        kind: ``F``, ``dX``, ``dW``, ``dX and dW``, ``update``, ``middle`` or ``exchange``;
            determines the color.
        name: shown on the bar.
        start, end: seconds.
        details: shown when the bar is clicked.
    """

    track: str
    kind: str
    name: str
    start: float
    end: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    """A group of tracks.

    Attributes:
        number: unique among the processes of a file.
        name: shown above the tracks.
        tracks: in the order in which they are shown.
        slices: those of a track may overlap in time.
        arrows: each leads from slice to slice, given as indices into ``slices``.
        arrow_name: what arrows stand for.
        memory: (seconds, bytes in use from then on); shown as a curve.
        more_memory: further such curves, by name.
    """

    number: int
    name: str
    tracks: tuple[str, ...]
    slices: Sequence[Slice]
    arrows: Sequence[Sequence[int]] = ()
    arrow_name: str = "gradient"
    memory: Sequence[tuple[float, int]] = ()
    more_memory: Mapping[str, Sequence[tuple[float, int]]] = field(default_factory=dict)


def write_perfetto(processes: Sequence[Process], path: Path) -> None:
    """Writes a trace; open the file in https://ui.perfetto.dev.

    Args:
        processes: shown one below the other.
        path: ``….json``, or ``….json.gz`` to compress it; overwritten.

    Raises:
        OSError: the file cannot be written.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"open with": "https://ui.perfetto.dev"},
        "traceEvents": trace_events(processes),
    }
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def trace_events(processes: Sequence[Process]) -> list[dict[str, Any]]:
    """The events of Chrome's trace format; times and durations in microseconds."""
    events: list[dict[str, Any]] = []
    num_arrows = 0
    for process in processes:
        threads = _threads(process)
        events += _titles(process, threads)
        events += _bars(process, threads)
        for arrow in process.arrows:
            events += _arrow(process, threads, arrow, number=num_arrows)
            num_arrows += 1
        for name, curve in {"memory": process.memory, **process.more_memory}.items():
            for seconds, num_bytes in curve:
                event = {"ph": "C", "name": name, "pid": process.number, "ts": seconds * 1e6}
                events.append({**event, "args": {"bytes": num_bytes}})
    return events


def _threads(process: Process) -> list[int]:
    """A thread number for each slice: slices of a track that overlap in time get
    different threads, as Chrome requires."""
    ends: dict[str, list[float]] = {track: [] for track in process.tracks}
    threads = [0] * len(process.slices)
    for place in sorted(range(len(threads)), key=lambda place: process.slices[place].start):
        item = process.slices[place]
        lanes = ends[item.track]
        free = (lane for lane, end in enumerate(lanes) if end <= item.start)
        lane = next(free, len(lanes))
        lanes[lane:] = [item.end, *lanes[lane + 1 :]]
        threads[place] = (process.tracks.index(item.track) + 1) * _LANES_PER_TRACK + lane
    return threads


def _titles(process: Process, threads: Sequence[int]) -> list[dict[str, Any]]:
    common: dict[str, Any] = {"ph": "M", "pid": process.number}
    events = [
        {**common, "name": "process_name", "args": {"name": process.name}},
        {**common, "name": "process_sort_index", "args": {"sort_index": process.number}},
    ]
    tracks = {thread: item.track for thread, item in zip(threads, process.slices, strict=True)}
    for thread, track in sorted(tracks.items()):
        place = {**common, "tid": thread}
        events.append({**place, "name": "thread_name", "args": {"name": track}})
        events.append({**place, "name": "thread_sort_index", "args": {"sort_index": thread}})
    return events


def _bars(process: Process, threads: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "name": item.name,
            "cat": item.kind,
            "cname": _COLORS[item.kind],
            "pid": process.number,
            "tid": thread,
            "ts": item.start * 1e6,
            "dur": (item.end - item.start) * 1e6,
            "args": dict(item.details),
        }
        for thread, item in zip(threads, process.slices, strict=True)
    ]


def _arrow(
    process: Process, threads: Sequence[int], places: Sequence[int], *, number: int
) -> list[dict[str, Any]]:
    phases = ["s", *["t"] * (len(places) - 2), "f"]
    events = []
    for phase, place in zip(phases, places, strict=True):
        event = {"ph": phase, "id": number, "name": process.arrow_name, "cat": process.arrow_name}
        # An arrow is attached to the slice that contains its time.
        item = process.slices[place]
        middle = (item.start + item.end) / 2 * 1e6
        event |= {"pid": process.number, "tid": threads[place], "ts": middle, "bp": "e"}
        events.append(event)
    return events
