"""Finds the cause of a failed training job: the key of the job file that a person can fix."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from ooodist.config.job import Config
from ooodist.engines.heartbeat import HEARTBEAT
from ooodist.errors import UserError, brief
from ooodist.pipeline.layers.out_of_memory import explained, is_out_of_memory

READING = "IteratorGetNext"  # TensorFlow's operation that reads an element of a data set
# Keras's scopes of losses and metrics, in names of operations.
_COMPUTING = re.compile(r"\bcompile_(loss|metrics)/(\w+)")
# Errors of TensorFlow's collectives, gRPC and Horovod when the peer process is gone.
_BROKEN_OFF = re.compile(
    r"Collective ops is aborted|Horovod has been shut down|Socket closed|Connection reset by peer"
    r"|Timed out waiting \d+ms for (recv|send) operation"  # of gloo, in Horovod
)
# What TensorFlow's coordination service says on all other ranks.
_SILENT = re.compile(r"stopped sending heartbeats\):((?:[\s,]*/job:worker/\S*task:\d+)+)")
# What it says on other ranks that do not reach it, which is in rank 0.
_NO_LEADER = re.compile(r"Deadline Exceeded\s+RPC: /tensorflow\.CoordinationService/Heartbeat")
_TASK = re.compile(r"task:(\d+)")


def find(error: BaseException, config: Config) -> UserError | None:
    """An error of a training step as a message that names the key; None if unknown."""
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
    """The ranks that TensorFlow has had no heartbeat from, and so took for dead."""
    texts = [str(link) for link in _chain(error)]
    lists = [each for text in texts for each in _SILENT.findall(text)]
    found = {int(rank) for each in lists for rank in _TASK.findall(each)}
    if not found and any(_NO_LEADER.search(text) for text in texts):
        return [0]
    return sorted(found)


def silence(
    error: BaseException, rank: int, hosts: Sequence[str], waited: float, limit: float
) -> str | None:
    """Who has not heard from whom, for how long and on which hosts; None if all were heard.

    Args:
        error: of an exchange.
        rank: this rank.
        hosts: the names of all ranks' hosts.
        waited: seconds since this rank has last gone on.
        limit: seconds of silence after which an engine gives a rank up.
    """
    silent, joint, doubt = silent_ranks(error), " and ", ""
    if not silent and is_of_another_rank(error) and waited >= limit:
        # Horovod does not say whether a rank was silent, nor which. One that has ended breaks off
        # an exchange at once, but this rank may have been late itself.
        silent = [other for other in range(len(hosts)) if other != rank]
        joint, doubt = " or ", " (unless it has ended, and says why)"
    if not silent:
        return None
    names = joint.join(f"rank {other} on {hosts[other]}" for other in silent)
    return (
        f"rank {rank} on {hosts[rank]} ends, as it has not heard from {names} for "
        f"{max(waited, limit):.0f} s: the process is stopped, or its host or network is gone"
        f"{doubt}; if it may be silent for so long, raise --heartbeat of the launcher, or "
        f"{HEARTBEAT} ({limit:g} s)"
    )


def _is_full(error: BaseException) -> bool:
    """Whether an error says that a disk is full. TensorFlow says it as it does of memory."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return isinstance(error, tf.errors.OpError) and os.strerror(errno.ENOSPC) in str(error)


def _more_memory(config: Config) -> str:
    """What gives a job that is not divided among ranks more memory; "" for others."""
    if config.parallel is not None:
        return ""
    return "lower batch (accumulate makes up for it), or divide the model among ranks (parallel)"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
