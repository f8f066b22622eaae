"""Reading the profiler's files: real recordings, damaged ones, and one made by hand."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from ooodist.compat.tensorflow_profiler import new_space
from ooodist.errors import UserError
from ooodist.profiler.recording.xplane import read_op_events, start_recording


@tf.function(autograph=False)
def multiply_twice(x: tf.Tensor) -> tf.Tensor:
    y = tf.matmul(x, x, name="a_product")
    return tf.linalg.matmul(y, tf.sin(y, name="a_sine"), name="another_product")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two calls of a function, and one of a function that calls one."""
    folder = tmp_path_factory.mktemp("recording")

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x)

    outer = tf.function(lambda x: inner(x) + 1.0, autograph=False)
    x = tf.random.uniform((300, 300))
    multiply_twice(x)
    outer(x)
    start_recording(folder)
    multiply_twice(x)
    multiply_twice(x)
    outer(x)
    # A call's results are there before its threads have left it, and what they have not left when
    # the recording stops is not in it.
    time.sleep(1)
    tf.profiler.experimental.stop()
    return folder


def test_ops_of_two_calls(recording: Path) -> None:
    events = read_op_events(recording)
    names = ("a_product", "a_sine", "another_product")
    ours = [event for event in events if event.name in names]
    if not ours:
        pytest.fail(
            f"TensorFlow {tf.__version__} records no op as 'name:Type' within "
            "ExecutorState::Process any more: see what tf.profiler writes now, and change "
            "ooodist.profiler.recording.xplane"
        )
    assert [event.name for event in ours] == [*names, *names]
    assert "MatMul" in ours[0].type
    assert ours[1].type == "Sin"
    calls = [event.execution for event in ours]
    assert calls[0] == calls[1] == calls[2] != calls[3] == calls[4] == calls[5]
    for first, second in itertools.pairwise(ours):
        assert 0 <= first.start < first.end <= second.start < 60


def test_an_asynchronous_op_lasts_until_it_is_done(recording: Path) -> None:
    events = read_op_events(recording)
    calls = [event for event in events if event.type.endswith("PartitionedCall")]
    if not calls:
        pytest.fail(
            f"TensorFlow {tf.__version__} records no ExecutorState::ProcessAsync::Start and "
            "::Done any more, by which recording/xplane.py knows how long an exchange took"
        )
    (call,) = calls
    (product,) = [e for e in events if call.start <= e.start and "MatMul" in e.type]
    assert call.start < product.start < product.end < call.end


def test_nothing_recorded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no recording .*tf\.profiler"):
        read_op_events(tmp_path)


def test_cut_off(recording: Path, tmp_path: Path) -> None:
    (file,) = recording.rglob("*.xplane.pb")
    data = file.read_bytes()
    (tmp_path / "cut.xplane.pb").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"cut\.xplane\.pb cannot be read .*record it again"):
        read_op_events(tmp_path)


def test_not_a_recording_at_all(tmp_path: Path) -> None:
    (tmp_path / "some.xplane.pb").write_bytes(b"\xff" * 100)
    with pytest.raises(UserError, match="cannot be read"):
        read_op_events(tmp_path)


def test_empty_recording(tmp_path: Path) -> None:
    (tmp_path / "some.xplane.pb").write_bytes(b"")
    assert read_op_events(tmp_path) == []


def test_newest_recording_counts(recording: Path, tmp_path: Path) -> None:
    (file,) = recording.rglob("*.xplane.pb")
    for session, data in (("2026_01_01", b""), ("2026_01_02", file.read_bytes())):
        (tmp_path / session).mkdir()
        (tmp_path / session / "host.xplane.pb").write_bytes(data)
    assert read_op_events(tmp_path) == read_op_events(recording)


def test_a_recording_of_a_gpu(tmp_path: Path) -> None:
    """Of four calls on an H200, the last of which had not ended yet.

    Each computes the sums of relu(x @ w) and conv2d(image, k), and one step of gradient descent.
    """
    shutil.copy(Path(__file__).with_name("h200.xplane.pb"), tmp_path)
    events = read_op_events(tmp_path)
    calls = [list(call) for _, call in itertools.groupby(events, lambda event: event.execution)]
    assert len(calls) == 3
    for call in calls:
        # A product is one kernel and another that adds its parts; a convolution also has some that
        # turn its operands.
        assert Counter(event.name for event in call if event.type != "Sum") == {
            "Conv2D-0-TransposeNHWCToNCHW-LayoutOptimizer": 1,
            "Conv2D": 5,
            "MatMul": 2,
            "Relu": 1,
            "add": 1,
            "gradient_tape/Conv2DBackpropFilter": 5,
            "gradient_tape/ReluGrad": 1,
            "gradient_tape/MatMul/MatMul": 1,
            "mul": 1,
            "mul_1": 1,
            "AssignSubVariableOp": 1,
            "AssignSubVariableOp_1": 1,
        }
        assert all(event.line.startswith("/device:GPU:0 Stream #13") for event in call)
        assert all(first.end <= second.start for first, second in itertools.pairwise(call))
        assert 20e-6 < sum(event.end - event.start for event in call) < 60e-6


def test_kernels_take_the_place_of_the_host(tmp_path: Path) -> None:
    space = new_space()
    host = Plane(space, "/host:CPU", "tf_Compute")
    host.event("ExecutorState::Process", 10, 20, id=17)
    host.event("dense/MatMul:MatMul", 11, 4)
    host.event("gemm", 12, 1, correlation_id=5)
    host.event("gemm", 13, 1, correlation_id=6)
    host.event("dense/Shape:Shape", 16, 1)
    host.event("copy", 18, 1, correlation_id=7)
    host.event("gemm", 40, 1, correlation_id=8)  # in no call
    device = Plane(space, "/device:GPU:0", "Stream #7")
    device.event("gemm", 7, 2, correlation_id=5, tf_op="dense/MatMul:MatMul")
    device.event("gemm", 9, 3, correlation_id=6, tf_op="dense/MatMul:MatMul")
    device.event("copy", 13, 1, correlation_id=7, tf_op="")
    device.event("gemm", 42, 1, correlation_id=8, tf_op="dense/MatMul:MatMul")
    (tmp_path / "gpu.xplane.pb").write_bytes(space.SerializeToString())
    found = read_op_events(tmp_path)
    # The GPU's clock is 5 us behind: the first kernel and the copy begin before their launches.
    times = [(event.name, round(event.start * 1e6), round(event.end * 1e6)) for event in found]
    assert times == [
        ("dense/MatMul", 12, 14),
        ("dense/MatMul", 14, 17),
        ("dense/Shape", 16, 17),
    ]
    assert [event.line for event in found] == [
        *["/device:GPU:0 Stream #7"] * 2,
        "/host:CPU tf_Compute",
    ]
    assert {event.execution for event in found} == {17}


class Plane:
    """A plane of a recording that is made by hand, with one line; times in microseconds."""

    def __init__(self, space: Any, name: str, line: str) -> None:
        self._plane = space.planes.add(name=name)
        self._line = self._plane.lines.add(name=line, timestamp_ns=1_700_000_000_000_000_000)

    def event(self, name: str, start: int, duration: int, **statistics: int | str) -> None:
        number = len(self._plane.event_metadata) + 1
        self._plane.event_metadata[number].name = name
        event = self._line.events.add(
            metadata_id=number, offset_ps=start * 1_000_000, duration_ps=duration * 1_000_000
        )
        for key, value in statistics.items():
            number = len(self._plane.stat_metadata) + 1
            self._plane.stat_metadata[number].name = key
            if isinstance(value, int):
                event.stats.add(metadata_id=number, int64_value=value)
            else:
                event.stats.add(metadata_id=number, str_value=value)
