"""A timeline as a file for Perfetto (https://ui.perfetto.dev), in Chrome's trace format.

    forward    | F conv1 | F conv2 |...                    | F conv1 |...
    dX                         | dX ... |                  ^
    dW                           | dW conv2 | dW conv1 |   |
    exchange                                |--conv2--||--conv1--|

An arrow leads from each gradient to its exchange, and on to the first forward unit of the next
step that uses the weights.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ooodist.report.timeline import ExchangeRun, Timeline, UnitRun

_TRACKS = {"F": "forward", "dX": "dX (output gradients)", "dW": "dW (weight gradients)"}
_EXCHANGE = "exchange"
# Names of Chrome's palette, which Perfetto knows: one colour a track.
_COLOURS = {"F": "good", "dX": "bad", "dW": "terrible", _EXCHANGE: "thread_state_iowait"}
_LANES_PER_TRACK = 1000


def write_perfetto(timeline: Timeline, path: Path, *, rank: int = 0, first_step: int = 0) -> None:
    """Writes a timeline; open the file in https://ui.perfetto.dev.

    Args:
        timeline: what was recorded.
        path: ``….json``, or ``….json.gz`` to have it compressed. It is replaced.
        rank: of the process, for the title.
        first_step: the number under which the first step is shown.

    Raises:
        OSError: the file cannot be written.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"open with": "https://ui.perfetto.dev"},
        "traceEvents": trace_events(timeline, rank=rank, first_step=first_step),
    }
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def trace_events(timeline: Timeline, *, rank: int = 0, first_step: int = 0) -> list[dict[str, Any]]:
    """The events of Chrome's trace format; times and durations in microseconds.

    Args: as for :func:`write_perfetto`.
    """
    slices = [
        *(slice_ for kind in _TRACKS for slice_ in _unit_slices(timeline, kind)),
        *_exchange_slices(timeline),
    ]
    slices = _assign_lanes(slices)
    events = [{"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}]
    events += _track_names(slices, rank)
    for item in slices:
        events.append(
            {
                "ph": "X",
                "name": item.run.name,
                "cat": item.track,
                "cname": _COLOURS[item.track],
                "pid": rank,
                "tid": item.thread,
                "ts": item.run.start * 1e6,
                "dur": (item.run.end - item.run.start) * 1e6,
                "args": {"step": item.run.step + first_step, **item.details},
            }
        )
    return events + _arrows(slices, rank)


class _Slice(NamedTuple):
    track: str
    run: UnitRun | ExchangeRun
    details: dict[str, Any]
    thread: int = 0


def _unit_slices(timeline: Timeline, kind: str) -> Iterable[_Slice]:
    for run in timeline.units:
        if run.kind == kind:
            yield _Slice(kind, run, {"busy_ms": run.busy * 1e3, "ops": len(run.events)})


def _exchange_slices(timeline: Timeline) -> Iterable[_Slice]:
    for run in timeline.exchanges:
        yield _Slice(_EXCHANGE, run, {"bytes": run.num_bytes, "weights": list(run.weights)})


def _assign_lanes(slices: Sequence[_Slice]) -> list[_Slice]:
    """Gives slices of a track that overlap in time threads of their own, as Chrome asks for."""
    tracks = [*_TRACKS, _EXCHANGE]
    ends: dict[str, list[float]] = {track: [] for track in tracks}
    placed = []
    for item in sorted(slices, key=lambda item: item.run.start):
        lanes = ends[item.track]
        free = (i for i, end in enumerate(lanes) if end <= item.run.start)
        lane = next(free, len(lanes))
        lanes[lane:] = [item.run.end, *lanes[lane + 1 :]]
        thread = (tracks.index(item.track) + 1) * _LANES_PER_TRACK + lane
        placed.append(item._replace(thread=thread))
    return placed


def _track_names(slices: Sequence[_Slice], rank: int) -> list[dict[str, Any]]:
    threads = {item.thread: item.track for item in slices}
    events: list[dict[str, Any]] = []
    for thread, track in sorted(threads.items()):
        common = {"ph": "M", "pid": rank, "tid": thread}
        name = _TRACKS.get(track, track)
        events.append({**common, "name": "thread_name", "args": {"name": name}})
        events.append({**common, "name": "thread_sort_index", "args": {"sort_index": thread}})
    return events


def _arrows(slices: Sequence[_Slice], rank: int) -> list[dict[str, Any]]:
    places = {(item.run.step, item.run.name): item for item in slices}
    events: list[dict[str, Any]] = []
    exchanges = [item for item in slices if isinstance(item.run, ExchangeRun)]
    for number, item in enumerate(exchanges):
        assert isinstance(item.run, ExchangeRun)
        made = places.get((item.run.step, item.run.after or ""))
        used = places.get((item.run.step + 1, item.run.before or ""))
        chain = [place for place in (made, item, used) if place is not None]
        if len(chain) > 1:
            phases = ["s", *["t"] * (len(chain) - 2), "f"]
            for phase, place in zip(phases, chain, strict=True):
                event = {"ph": phase, "id": number, "name": "gradient", "cat": "gradient"}
                # An arrow hangs on the slice in which its time lies.
                middle = (place.run.start + place.run.end) / 2 * 1e6
                event |= {"pid": rank, "tid": place.thread, "ts": middle, "bp": "e"}
                events.append(event)
    return events
