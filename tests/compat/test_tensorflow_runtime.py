"""Contracts: settings and states of TensorFlow's runtime."""

from __future__ import annotations

import subprocess

import pytest
import tensorflow as tf

from ooodist.compat import tensorflow_runtime
from tests.compat.contract import Contract
from tests.fork_server import fast_python

# All change the whole process, so they are tried in one of their own.
_DETERMINISTIC = """
import tensorflow as tf
from ooodist.compat.tensorflow_runtime import is_deterministic
before = is_deterministic()
tf.config.experimental.enable_op_determinism()
assert (before, is_deterministic()) == (False, True), (before, is_deterministic())
"""
_SPINNING = """
import tensorflow as tf
from tensorflow.python.eager import context
from ooodist.compat.tensorflow_runtime import stop_spinning
tf.config.threading.set_inter_op_parallelism_threads(3)
tf.config.list_physical_devices()
assert not context.context().config.experimental.disable_thread_spinning
assert stop_spinning()
made = context.context().config
assert made.experimental.disable_thread_spinning, made
assert made.inter_op_parallelism_threads == 3, made  # what the user has chosen stays
assert tf.reduce_sum(tf.ones(3)) == 3
assert not stop_spinning()  # it has started
"""
_HEARTBEAT = """
from tensorflow.python.eager import context
from ooodist.compat.tensorflow_runtime import set_heartbeat
set_heartbeat(2, 12.5)
made = context.context().coordination_service
assert made.heartbeat_timeout_in_ms == 12500, made
assert [(job.name, job.num_tasks) for job in made.coordinated_job_list] == [("worker", 2)], made
"""
_SCALARS = """
import numpy as np
import tensorflow as tf
from ooodist.compat.tensorflow_runtime import forget_scalars
def place(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"]
first, again = tf.constant(0.1234567), tf.constant(0.1234567)
assert place(first) == place(again)
forget_scalars()
later = tf.constant(0.1234567)
assert place(first) != place(later)
assert first == later
"""


def _runs(program: str) -> None:
    process = subprocess.run([fast_python(), "-c", program], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def _others() -> None:
    with tf.GradientTape() as tape:
        assert not tensorflow_runtime.others_record(tape)
    assert not tensorflow_runtime.others_record(tape)
    with tf.GradientTape() as outer:
        assert tensorflow_runtime.others_record(tape)
        with tf.GradientTape() as inner:
            assert tensorflow_runtime.others_record(inner)
            with outer.stop_recording():
                assert not tensorflow_runtime.others_record(inner)


CONTRACTS = [
    Contract("could_possibly_record", "tensorflow-cpu", tensorflow_runtime.others_record, _others),
    Contract(
        "config.is_op_determinism_enabled",
        "tensorflow-cpu",
        tensorflow_runtime.is_deterministic,
        lambda: _runs(_DETERMINISTIC),
    ),
    Contract(
        "pywrap_tfe.TFE_ClearScalarCache",
        "tensorflow-cpu",
        tensorflow_runtime.forget_scalars,
        lambda: _runs(_SCALARS),
    ),
    Contract(
        "Context._config",
        "tensorflow-cpu",
        tensorflow_runtime.stop_spinning,
        lambda: _runs(_SPINNING),
    ),
    Contract(
        "context.configure_coordination_service",
        "tensorflow-cpu",
        tensorflow_runtime.set_heartbeat,
        lambda: _runs(_HEARTBEAT),
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_tensorflow_keeps(contract: Contract) -> None:
    contract.hold()
