"""Finds the cause of a failed training job: the key of the job file that a person can fix."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator

from ooodist.config.job import Config
from ooodist.errors import UserError, brief

READING = "IteratorGetNext"  # TensorFlow's operation that reads an element of a data set
# Keras's scopes of losses and metrics, in names of operations.
_COMPUTING = re.compile(r"\bcompile_(loss|metrics)/(\w+)")
# Errors of TensorFlow's collectives, gRPC and Horovod when the peer process is gone.
_BROKEN_OFF = re.compile(
    r"Collective ops is aborted|Horovod has been shut down|Socket closed|Connection reset by peer"
)

_NO_MEMORY = re.compile(r"OOM when allocating|failed to allocate memory|Unable to allocate .*iB")


def find(error: BaseException, config: Config) -> UserError | None:
    """Returns an error of a training step as a message that names the key; None if unknown."""
    for link in _chain(error):
        text = str(link)
        if _is_out_of_memory(link):
            return UserError(
                f"there is no memory left: {brief(link)}; {_memory()}; {_way_out_of_memory(config)}"
            )
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


def with_way_out(error: UserError, config: Config) -> UserError:
    """Returns the error that ranks share, with advice if it says that memory has ended on one."""
    if not _is_out_of_memory(error):
        return error
    return UserError(f"{error}; {_way_out_of_memory(config)}")


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def _memory() -> str:
    """Says how much memory this process has had, and may have."""
    said = [
        "the process has had up to "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f} MB"
    ]
    for name, kind in (("ulimit -d", resource.RLIMIT_DATA), ("ulimit -v", resource.RLIMIT_AS)):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            said.append(f"its limit ({name}) is {limit / 1e6:.0f} MB")
    return ", ".join(said)


def _way_out_of_memory(config: Config) -> str:
    way = "lower batch (accumulate makes up for it), or divide the model among ranks (parallel)"
    if config.parallel is not None:
        way = (
            "give parallel.memory_bytes, so that the plan counts what a rank has, more stages "
            "(parallel.pipeline), more parallel.microbatches, or parallel.recompute: true"
        )
    return f"{way}; the last checkpoint is complete: go on from it with --resume"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
