"""Gives each process its own GPU or share of the cores, and waits for the GPU's work."""

import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ooodist.errors import UserError
from ooodist.util.cores import use_own_cores


def use_own_device(local_rank: int, local_size: int | None) -> None:
    """Leaves only GPU number ``local_rank`` of this host visible to TensorFlow, if it has GPUs.

    If it has none, this process gets its share of the cores: see ``util/cores.py``.

    Args:
        local_rank: number of this process among those of its host.
        local_size: their number; None: unknown.

    Raises:
        UserError: the host has too few GPUs, or TensorFlow has already started on them; or the
            variable OOODIST_CORES has no allowed value.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        use_own_cores(local_rank, local_size)
        return
    if local_size == 1:
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


def show_own_gpu_alone(local_rank: int, local_size: int | None) -> None:
    """Hides the other GPUs from all libraries of this process, if it is one of several on its host.

    For a library that takes the first GPU that it sees. Has to come before CUDA starts, so how many
    GPUs there are is not known yet: see :func:`use_own_device`. Arguments as there.

    Raises:
        UserError: CUDA_VISIBLE_DEVICES names too few.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = None if named is None else named.split(",")
    if local_size == 1 or (gpus is not None and len(gpus) == 1):
        return  # all are its own, or the launcher has given it one
    if gpus is not None and local_rank >= len(gpus):
        raise UserError(
            f"worker {local_rank} of this host (from 0), but CUDA_VISIBLE_DEVICES is {named}: name "
            "a GPU for each worker, or start fewer"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank) if gpus is None else gpus[local_rank]


def wait_for_gpu() -> None:
    """Waits until the GPU has done all of its work; on CPUs a call ends when its work is done."""
    if tf.config.get_visible_devices("GPU"):
        tf.test.experimental.sync_devices()


def seconds_of(action: Callable[[], Any]) -> float:
    """Runs an action and returns the seconds until its work, also on the GPU, is done."""
    began = time.perf_counter()
    action()
    wait_for_gpu()
    return time.perf_counter() - began
