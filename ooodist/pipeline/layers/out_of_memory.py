"""What a rank takes beside its stages, and what it says when its memory ends.

::

    process     code, libraries, graphs
    planned     weights, optimizer state, gradient sums, activations, messages, workspace: what
                parallel.memory_bytes limits
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from ooodist.compat.keras_deferred import has_value
from ooodist.errors import UserError, brief
from ooodist.step.sharding.state import size_of
from ooodist.util.process_memory import lowest_limit, resident_bytes

# Some of TensorFlow's errors are not ResourceExhaustedError; C++ says bad_alloc.
_ENDED = re.compile(r"\bOOM when allocating|std::bad_alloc|failed to allocate memory", re.I)


def process_bytes(variables: Iterable[Any]) -> int | None:
    """What this process takes beside variables: code, libraries, graphs.

    It is read while no step runs. Where stages run on a GPU, variables are not in the process.

    Args:
        variables: of Keras or TensorFlow; those without a value take nothing.

    Returns:
        bytes; None where the kernel does not say.
    """
    resident = resident_bytes()
    if resident is None or tf.config.get_visible_devices("GPU"):
        return resident
    return resident - sum(size_of(variable) for variable in variables if has_value(variable))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that no memory is left."""
    if isinstance(error, MemoryError | tf.errors.ResourceExhaustedError):
        return True
    return not isinstance(error, UserError) and bool(_ENDED.search(str(error)))


@contextlib.contextmanager
def explaining_lack_of_memory(
    doing: str, planned: Callable[[], str] | None = None
) -> Iterator[None]:
    """Raises UserError if memory ends in this block.

    Args:
        doing: what happens in the block, as "rank 1 trains a step".
        planned: returns in words what was planned for this rank; None: nothing yet.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise explained(error, doing, "" if planned is None else planned()) from error


def explained(
    error: BaseException, doing: str, planned: str = "", *, way_out: str = ""
) -> UserError:
    """The error to show where memory has ended.

    Args:
        error: what allocating has raised.
        doing: what was done then.
        planned: what was planned for this rank; "" if nothing was.
        way_out: what to do; "": what a pipeline can do.
    """
    limit = lowest_limit()
    parts = [f"no memory is left while {doing}: {brief(error)}"]
    if planned:
        parts.append(f"planned are {planned}")
    if limit is not None:
        parts.append(f"the limit of the process is {limit.num_bytes} bytes ({limit.name})")
    parts.append(
        way_out
        or "give parallel.memory_bytes, what stages may take of a rank's memory, so that the plan "
        "keeps to it; or take more ranks (parallel.pipeline), parallel.recompute or smaller "
        "micro-batches"
    )
    return UserError("; ".join(parts) + ". Checkpoints are as they were")
