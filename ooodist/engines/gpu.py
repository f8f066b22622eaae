"""One GPU a process, and what it has not done yet."""

import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ooodist.errors import UserError


def use_own_gpu(local_rank: int, local_size: int | None) -> None:
    """Leaves only GPU number ``local_rank`` of this host visible to TensorFlow, if it has GPUs.

    Args:
        local_rank: of this process among those of its host.
        local_size: their number; None: nobody knows it.

    Raises:
        UserError: the host has too few, or TensorFlow has started before.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus or local_size == 1:
        return
    if len(gpus) == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
        return  # the launcher has given this process its own already
    workers = local_rank + 1 if local_size is None else local_size
    if workers > len(gpus):
        raise UserError(
            f"{workers} workers on this host, but it has {len(gpus)} GPUs: start at most "
            f"{len(gpus)} workers here, or train on the CPU with CUDA_VISIBLE_DEVICES=-1"
        )
    try:
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
    except RuntimeError as error:
        raise UserError(
            "ooodist.init was called after TensorFlow had started on the GPUs; call it before "
            "anything else that uses TensorFlow"
        ) from error


def wait_for_gpu() -> None:
    """Returns when the GPU has done all that it was given; on CPUs a call ends when all is done."""
    if tf.config.get_visible_devices("GPU"):
        tf.test.experimental.sync_devices()


def seconds_of(action: Callable[[], Any]) -> float:
    """Seconds of an action, to the end of all that it has given the GPU."""
    began = time.perf_counter()
    action()
    wait_for_gpu()
    return time.perf_counter() - began
