"""Finds the cause of a failed training job: the key of the job file that a person can fix."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from ooodist.config.job import Config
from ooodist.errors import UserError, brief
from ooodist.pipeline.layers.memory import explained, is_out_of_memory

READING = "IteratorGetNext"  # TensorFlow's operation that reads an element of a data set
# Keras's scopes of losses and metrics, in names of operations.
_COMPUTING = re.compile(r"\bcompile_(loss|metrics)/(\w+)")
# Errors of TensorFlow's collectives, gRPC and Horovod when the peer process is gone.
_BROKEN_OFF = re.compile(
    r"Collective ops is aborted|Horovod has been shut down|Socket closed|Connection reset by peer"
)
# What TensorFlow's coordination service says on all other ranks.
_SILENT = re.compile(r"stopped sending heartbeats\):((?:[\s,]*/job:worker/\S*task:\d+)+)")
_TASK = re.compile(r"task:(\d+)")


def find(error: BaseException, config: Config) -> UserError | None:
    """Returns an error of a training step as a message that names the key; None if unknown."""
    for link in _chain(error):
        text = str(link)
        if not isinstance(link, UserError) and _is_full(link):
            return UserError(
                f"output is {config.output}; a file there or in a temporary folder cannot be "
                f"written: {brief(link)}; make room, and go on from the last checkpoint with "
                "--resume"
            )
        if is_out_of_memory(link):
            return explained(link, "the job runs", way_out=_more_memory(config))
        if READING in text:
            return UserError(
                f"data {config.data.name}: a batch cannot be read: {brief(link)}; fix the data or "
                "the program that reads it, and go on from the last checkpoint with --resume"
            )
        if computing := _COMPUTING.search(text):
            kind, name = computing.groups()
            return UserError(
                f"{kind} {name} cannot be computed from the model's outputs and the labels: "
                f"{brief(link)}; give {kind} that fits them, or fix the labels of data "
                f"{config.data.name}"
            )
        if isinstance(link, OSError) and config.output in text:
            return UserError(
                f"output is {config.output}, where something can no longer be written: "
                f"{brief(link)}; make room or give the permission, and go on from the last "
                "checkpoint with --resume"
            )
    return None


def is_of_another_rank(error: BaseException) -> bool:
    """Whether an error says only that the peer process of an exchange is gone."""
    return any(_BROKEN_OFF.search(str(link)) for link in _chain(error))


def silent_ranks(error: BaseException) -> list[int]:
    """Returns the ranks that TensorFlow has had no heartbeat from, and so took for dead."""
    lists = (match for link in _chain(error) for match in _SILENT.findall(str(link)))
    return sorted({int(rank) for each in lists for rank in _TASK.findall(each)})


def _is_full(error: BaseException) -> bool:
    """Whether an error says that a disk is full. TensorFlow says it as it does of memory."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return isinstance(error, tf.errors.OpError) and os.strerror(errno.ENOSPC) in str(error)


def _more_memory(config: Config) -> str:
    """Returns what gives a job that is not divided among ranks more memory; "" for others."""
    if config.parallel is not None:
        return ""
    return "lower batch (accumulate makes up for it), or divide the model among ranks (parallel)"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
