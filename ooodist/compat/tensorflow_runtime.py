"""Settings and states of TensorFlow's runtime that have no public interface."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def is_deterministic() -> bool:
    """Whether ``tf.config.experimental.enable_op_determinism`` was called.

    ``is_op_determinism_enabled`` of tensorflow.python.framework.config. TensorFlow's own
    ``tf.timestamp`` checks it, and refuses to run if it is set.
    """
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def forget_scalars() -> None:
    """Frees the tensors that TensorFlow keeps of every Python number that became one.

    ``TFE_ClearScalarCache`` of tensorflow.python.pywrap_tfe. The cache has no bound: a kilobyte for
    each other number, such as what TensorBoard's callback writes. Tensors in use stay.
    """
    from tensorflow.python import pywrap_tfe

    pywrap_tfe.TFE_ClearScalarCache()


def stop_spinning() -> bool:
    """Lets TensorFlow's threads sleep as soon as they find nothing to do; usually they spin first.

    ``Context._config`` of tensorflow.python.eager.context, from which the threads are made later.
    The public ``tf.compat.v1.enable_eager_execution(config=...)`` refuses if there is a context
    already, and ``tf.config.list_physical_devices`` makes one.

    Returns:
        False if TensorFlow has started its threads already.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    current = context.context()
    if current._initialized:
        return False
    config = tf.compat.v1.ConfigProto()
    if current._config is not None:
        config.CopyFrom(current._config)
    config.experimental.disable_thread_spinning = True
    current._config = config
    return True


def set_heartbeat(workers: int, seconds: float) -> None:
    """Sets the heartbeat timeout after which a silent worker counts as dead.

    MultiWorkerMirroredStrategy starts a coordination service that must be configured before it:
    ``configure_coordination_service`` of tensorflow.python.eager.context.

    Args:
        workers: number of workers of the job.
        seconds: the timeout, rounded down to milliseconds.
    """
    # The message's own module moves between versions; this one has it in all.
    from tensorflow.python.distribute import collective_all_reduce_strategy as strategies
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=int(seconds * 1000),
        coordinated_jobs=[
            strategies.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=workers)
        ],
    )


def others_record(tape: tf.GradientTape) -> bool:
    """Whether a tape other than this one is recording.

    ``record.could_possibly_record`` (of tensorflow.python.eager) is called while this tape is
    paused, if it is recording (``GradientTape._recording``). No public name tells.
    """
    from tensorflow.python.eager import record

    with tape.stop_recording() if tape._recording else contextlib.nullcontext():
        return bool(record.could_possibly_record())
