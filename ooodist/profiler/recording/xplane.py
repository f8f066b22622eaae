"""Reads the files of TensorFlow's profiler: which op ran when.

The profiler writes one ``*.xplane.pb`` per recording: planes (the host's CPUs, each GPU) hold lines
(threads, streams), and these hold events. On ``/host:CPU`` the executor records, with
``host_tracer_level=3``::

    a thread   |-- ExecutorState::Process (id 17) ------------------------------------|
                  |- dense/MatMul:MatMul -|       |- ProcessAsync::Start (id 17) -|
                                                     for example of op exchange/a
    another                                                 |- ProcessAsync::Done (id 17) -|

The id tells one call of a function from the next. An op that completes later, such as an exchange,
runs from its Start to its Done. On ``/device:GPU:n`` an event is a kernel. Its statistic ``tf_op``
names the op, which the host does not record then, but for the launches of its kernels; a kernel and
its launch have the same ``correlation_id``::

    /host:CPU      |-- ExecutorState::Process (id 17) --|
                      |- gemm (correlation_id 5) -|
    /device:GPU:0                    |- gemm (correlation_id 5, tf_op dense/MatMul:MatMul) -|
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from ooodist.compat.tensorflow_profiler import new_space
from ooodist.errors import UserError

_HOST = "/host:CPU"
_GPU = "/device:GPU:"
_PROCESS = "ExecutorState::Process"
_START = "ExecutorState::ProcessAsync::Start"
_DONE = "ExecutorState::ProcessAsync::Done"
# As in "gradient_tape/dense/MatMul_1:MatMul". No op name or type has a colon itself.
_OP = re.compile(r"([A-Za-z0-9.][\w.\\/>-]*):([A-Z_]\w*)")


@dataclass(frozen=True)
class OpEvent:
    """One op that ran, or one of its kernels.

    Attributes:
        name: the op's name in its graph.
        type: the op's type; the fused op's type where TensorFlow has fused several into this one.
        start, end: seconds since the recording began.
        line: plane and thread, or stream.
        execution: identifies the call of a function that the op ran in.
    """

    name: str
    type: str
    start: float
    end: float
    line: str
    execution: int

    @property
    def is_kernel(self) -> bool:
        """Whether a GPU ran it."""
        return self.line.startswith(_GPU)


def start_recording(folder: Path) -> None:
    """Starts TensorFlow's profiler; ``tf.profiler.experimental.stop()`` writes the recording.

    Raises:
        tf.errors.AlreadyExistsError: the profiler is running.
    """
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=3,  # includes ops that TensorFlow considers cheap
        python_tracer_level=0,
        device_tracer_level=1 if tf.config.get_visible_devices("GPU") else 0,
    )
    tf.profiler.experimental.start(str(folder), options)


def read_op_events(folder: Path) -> list[OpEvent]:
    """The op events of the newest recording below ``folder``, sorted by start.

    Args:
        folder: the folder given to :func:`start_recording` or ``tf.profiler.experimental.start``.

    Raises:
        UserError: there is no recording, or it cannot be read.
    """
    files = sorted(Path(folder).rglob("*.xplane.pb"))
    if not files:
        raise UserError(
            f"{folder} holds no recording (*.xplane.pb) of TensorFlow's profiler; give the folder "
            "that tf.profiler.experimental.start was given"
        )
    space = new_space()
    try:
        space.ParseFromString(files[-1].read_bytes())
    except (DecodeError, OSError) as error:
        raise UserError(
            f"{files[-1]} cannot be read ({error}); it is damaged or was cut off: record it again"
        ) from error
    planes = [p for p in space.planes if p.name == _HOST or p.name.startswith(_GPU)]
    # Some versions count from 1970: subtracted here, where numbers are still exact.
    origin = min((line.timestamp_ns for p in planes for line in p.lines), default=0)
    on_host, on_devices = [], []
    for plane in planes:
        events = [event for line in plane.lines for event in _events(plane, line, origin)]
        if plane.name == _HOST:
            on_host += events
        else:
            on_devices.append(events)
    called = list(_in_calls(on_host))
    kernels = [op for events in on_devices for op in _device_ops(events, called)]
    by_kernels = {(op.execution, op.name) for op in kernels}
    ops = [*_host_ops(called), *_asynchronous_ops(on_host)]
    ops = [op for op in ops if (op.execution, op.name) not in by_kernels]
    return sorted(ops + kernels, key=lambda event: event.start)


class _Event(NamedTuple):
    """A recorded event; start and end in seconds."""

    name: str
    start: float
    end: float
    line: str
    statistics: dict[str, Any]


def _events(plane: Any, line: Any, origin: int) -> Iterator[_Event]:
    """Yields the events of a line; an event comes before those that it encloses."""
    begin = (line.timestamp_ns - origin) * 1000
    label = f"{plane.name} {line.display_name or line.name}"
    for event in sorted(line.events, key=lambda e: (e.offset_ps, -e.duration_ps)):
        start = begin + event.offset_ps
        name = plane.event_metadata[event.metadata_id].name
        statistics = {}
        for statistic in event.stats:
            kind = statistic.WhichOneof("value")
            value = getattr(statistic, kind) if kind else None
            if kind == "ref_value":
                value = plane.stat_metadata[value].name
            statistics[plane.stat_metadata[statistic.metadata_id].name] = value
        yield _Event(name, start / 1e12, (start + event.duration_ps) / 1e12, label, statistics)


def _in_calls(events: Iterable[_Event]) -> Iterator[tuple[int, _Event]]:
    """Yields the events within an executor's Process events, and the ids of these."""
    enclosing: list[_Event] = []
    for event in events:
        while enclosing and (enclosing[-1].line != event.line or enclosing[-1].end <= event.start):
            enclosing.pop()
        if event.name == _PROCESS and "id" in event.statistics:
            enclosing.append(event)
        elif enclosing:
            yield int(enclosing[-1].statistics["id"]), event


def _host_ops(called: Iterable[tuple[int, _Event]]) -> Iterator[OpEvent]:
    for execution, event in called:
        if op := _OP.fullmatch(event.name):
            yield OpEvent(op[1], op[2], event.start, event.end, event.line, execution)


def _asynchronous_ops(events: Iterable[_Event]) -> Iterator[OpEvent]:
    """Yields the ops that complete after they have returned: from each Start to its Done."""
    starts: dict[tuple[str, int], list[_Event]] = {}
    ends: dict[tuple[str, int], list[_Event]] = {}
    for event in events:
        if event.name in (_START, _DONE):
            key = (str(event.statistics["name"]), int(event.statistics["step_id"]))
            (starts if event.name == _START else ends).setdefault(key, []).append(event)
    for (name, execution), begun in starts.items():
        # An op in a loop runs several times, one after the other.
        done = sorted(ends.get((name, execution), []), key=lambda event: event.start)
        for first, last in zip(sorted(begun, key=lambda e: e.start), done, strict=False):
            type_ = str(first.statistics["kernel_type"])
            yield OpEvent(name, type_, first.start, last.start, first.line, execution)


def _device_ops(
    kernels: Iterable[_Event], called: Iterable[tuple[int, _Event]]
) -> Iterator[OpEvent]:
    """Yields a GPU's kernels that belong to an op, which copies and the like do not.

    The GPU has a clock of its own, by which a kernel may begin before its launch. So its times are
    put off until none does.
    """
    launches = {
        event.statistics["correlation_id"]: (execution, event.start)
        for execution, event in called
        if "correlation_id" in event.statistics
    }
    launched = [
        (kernel, *launches[number])
        for kernel in kernels
        if (number := kernel.statistics.get("correlation_id")) in launches
    ]
    behind = max((at - kernel.start for kernel, _, at in launched), default=0.0)
    for kernel, execution, _ in launched:
        if op := _OP.fullmatch(str(kernel.statistics.get("tf_op"))):
            start, end = kernel.start + behind, kernel.end + behind
            yield OpEvent(op[1], op[2], start, end, kernel.line, execution)
