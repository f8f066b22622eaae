"""Which key of a job file was to blame: with errors as TensorFlow, Keras and HDF5 really raise."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.config import job as job_file
from ooodist.config.job import Config
from ooodist.job import causes
from tests.fork_server import fast_python
from tests.jobs import ROOT


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return job_file.load(None, [f"output={tmp_path}/runs"])


def raised(function, *arguments, **named) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        function(*arguments, **named)
    return caught.value


def small_model(loss: object = None, metrics: object = None) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=metrics, jit_compile=False)
    return model


def data(labels: object) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((np.ones((2, 4), "f"), np.array(labels)))


def test_data_that_raises_while_it_is_read(config: Config) -> None:
    def samples():
        yield np.ones((2, 4), "f"), np.zeros(2, "i")
        raise ValueError("no more of this")

    spec = tf.TensorSpec((2, 4), tf.float32), tf.TensorSpec(2, tf.int32)
    those = tf.data.Dataset.from_generator(samples, output_signature=spec)
    error = raised(small_model().fit, those, verbose=0)
    message = str(causes.find(error, config))
    assert message.startswith("data digits: a batch cannot be read: ValueError: no more of this (")
    assert "test_causes.py, line " in message
    assert not causes.is_of_another_rank(error)


def test_records_that_are_damaged(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "damaged.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"x" * 100)
    content = bytearray(file.read_bytes())
    content[50] ^= 1
    file.write_bytes(content)
    message = str(causes.find(raised(list, tf.data.TFRecordDataset(str(file))), config))
    assert message.startswith("data digits: a batch cannot be read: DataLossError: corrupted rec")


def test_labels_that_the_loss_does_not_know(config: Config) -> None:
    error = raised(small_model().fit, data([0, 77]), verbose=0)
    message = str(causes.find(error, config))
    assert message.startswith("loss sparse_categorical_crossentropy cannot be computed from ")
    assert "label value" in message
    assert "labels of data digits" in message
    assert "\n" not in message


def test_an_output_that_is_gone(config: Config, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.write_text("no folder")
    for write in (
        lambda: (runs / "history.csv").write_text("x"),
        lambda: h5py.File(runs / "model.weights.h5", "w"),
    ):
        message = str(causes.find(raised(write), config))
        assert message.startswith(f"output is {runs}, where something can no longer be written: ")


def test_what_it_was_raised_from_counts_as_well(config: Config, tmp_path: Path) -> None:
    def write() -> None:
        try:
            (tmp_path / "runs" / "deep" / "file").write_text("x")
        except OSError as error:
            raise RuntimeError("the callback failed") from error

    assert "can no longer be written" in str(causes.find(raised(write), config))


def limited(megabytes: int, code: str) -> str:
    """The error that code raises where the kernel limits its process to so much memory."""
    limits = f"resource.setrlimit(resource.RLIMIT_DATA, ({megabytes} << 20,) * 2)"
    program = (
        "import resource, sys; import numpy as np; import tensorflow as tf; "
        "from ooodist.config import job; from ooodist.job import causes; "
        f"tf.ones(4).numpy(); {limits}\n"
        f"try:\n    {code}\nexcept Exception as error:\n"
        "    print(causes.find(error, job.load(None, sys.argv[1:])))\n"
    )
    command = [fast_python(), "-c", program, "parallel={pipeline: 2, microbatches: 4}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [  # TensorFlow tries for ten seconds
        "tf.matmul(tf.ones((1 << 15, 16)), tf.ones((16, 1 << 15)))",
        "np.ones((1 << 20, 4096))",
    ],
)
def test_memory_that_ended(code: str) -> None:
    text = limited(3000, code)
    assert text.startswith("no memory is left while the job runs: ")
    assert "is 3145728000 bytes (RLIMIT_DATA); give parallel.memory_bytes" in text


def test_memory_that_ended_without_stages(config: Config) -> None:
    assert "; lower batch" in str(causes.find(MemoryError("no"), config))


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), OSError(2, "none", "/elsewhere"), KeyError("loss")]
)
def test_other_errors_have_no_known_cause(config: Config, error: Exception) -> None:
    assert causes.find(error, config) is None
    assert not causes.is_of_another_rank(error)


@pytest.mark.parametrize(
    "text",
    [
        "Collective ops is aborted by: Socket closed\nAdditional GRPC error information",
        "Horovod has been shut down. This was caused by an exception on one of the ranks",
        "[unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete",
    ],
)
def test_exchanges_that_broke_off_are_no_cause(config: Config, text: str) -> None:
    error = tf.errors.UnavailableError(None, None, text)
    assert causes.is_of_another_rank(error)
    assert causes.find(error, config) is None


@pytest.mark.parametrize("ranks", [[1], [0, 12]])
def test_ranks_that_are_silent_are_named(config: Config, ranks: list[int]) -> None:
    """As TensorFlow 2.21 says it, on the ranks that go on."""
    tasks = " ".join(f"/job:worker/replica:0/task:{rank}" for rank in ranks)
    error = tf.errors.UnavailableError(
        None,
        None,
        "Collective ops is aborted by: Error reported from /job:worker/replica:0/task:7: The "
        f"following tasks are unhealthy (stopped sending heartbeats):\n{tasks}\nThe tasks have "
        "crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption).",
    )
    assert causes.silent_ranks(raised(_raise, error)) == ranks
    assert causes.is_of_another_rank(error)


def test_so_is_rank_0_which_the_others_cannot_reach() -> None:
    error = tf.errors.DeadlineExceededError(
        None,
        None,
        "Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/"
        "Heartbeat\nThe error could be from a previous operation.",
    )
    message = causes.silence(error, 1, ["a", "b"], 34.6, 30)
    assert message is not None
    assert message.startswith("rank 1 on b ends, as it has not heard from rank 0 on a for 35 s: ")
    assert "raise --heartbeat of the launcher, or OOODIST_HEARTBEAT_SECONDS (30 s)" in message


def test_an_exchange_that_breaks_off_late_is_silence_and_at_once_is_an_end() -> None:
    """As Horovod says both."""
    error = tf.errors.UnknownError(None, None, "Horovod has been shut down. This was caused by")
    message = causes.silence(error, 1, ["a", "b", "b"], 31, 30)
    assert message is not None
    assert "has not heard from rank 0 on a or rank 2 on b for 31 s: " in message
    assert "(unless it has ended, and says why)" in message
    assert causes.silence(error, 1, ["a", "b", "b"], 29, 30) is None


def test_ranks_that_failed_are_not_silent() -> None:
    error = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")
    assert causes.silent_ranks(error) == []


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "/tmp/events"),
        tf.errors.ResourceExhaustedError(None, None, "/runs/events.v2; No space left on device"),
    ],
    ids=["full", "quota", "TensorFlow"],
)
def test_a_disk_that_is_full_is_no_lack_of_memory(config: Config, error: Exception) -> None:
    message = str(causes.find(raised(_raise, error), config))
    assert message.startswith(f"output is {config.output}; a file there or in a temporary folder ")
    assert "make room" in message
    assert "memory" not in message
