"""Reading the profiler's files: a real recording, damaged ones, and one as of a GPU."""

from __future__ import annotations

import itertools
from pathlib import Path

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
        assert first.duration == first.end - first.start


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


def test_kernels_of_a_gpu(tmp_path: Path) -> None:
    # Written by hand in the form that TensorFlow documents, as there is no GPU here.
    space = new_space()
    plane = space.planes.add(name="/device:GPU:0")
    plane.event_metadata[1].name = "void gemm<float>(float*)"
    for number, name in ((1, "tf_op"), (2, "dense/MatMul:MatMul"), (3, "memcpy")):
        plane.stat_metadata[number].name = name
    line = plane.lines.add(name="Stream #7", timestamp_ns=1_700_000_000_000_000_000)
    for offset, op in ((1_000_000, 2), (5_000_000, 3)):
        event = line.events.add(metadata_id=1, offset_ps=offset, duration_ps=2_000_000)
        event.stats.add(metadata_id=1, ref_value=op)
    (tmp_path / "gpu.xplane.pb").write_bytes(space.SerializeToString())
    (kernel,) = read_op_events(tmp_path)
    assert (kernel.name, kernel.type, kernel.execution) == ("dense/MatMul", "MatMul", None)
    assert kernel.line == "/device:GPU:0 Stream #7"
    assert kernel.start == pytest.approx(1e-6)
    assert kernel.duration == pytest.approx(2e-6)
