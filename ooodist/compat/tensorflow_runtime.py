"""Settings of TensorFlow's runtime that cannot be read, or made, in public."""

from __future__ import annotations


def is_deterministic() -> bool:
    """Whether ``tf.config.experimental.enable_op_determinism`` was called.

    ``is_op_determinism_enabled`` of tensorflow.python.framework.config. TensorFlow's own
    ``tf.timestamp`` asks it, and refuses to run.
    """
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def set_heartbeat(workers: int, seconds: float) -> None:
    """Has workers given up only when nothing is heard of them for so long.

    MultiWorkerMirroredStrategy keeps a coordination service that is configured before it:
    ``configure_coordination_service`` of tensorflow.python.eager.context.
    Imported when it is needed, which is in an emulated network alone.

    Args:
        workers: of the job.
        seconds: rounded down to milliseconds.
    """
    # The message's own module moves from version to version; this one has it in all.
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
