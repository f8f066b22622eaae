"""Distributed TensorFlow training that computes weight gradients out of order.

The public names load TensorFlow only when they are first used.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ooodist.errors import UserError, WorkerError
from ooodist.util.packages import importing_tensorflow

if TYPE_CHECKING:
    from ooodist.data.sharding import shard
    from ooodist.engines import init, shutdown
    from ooodist.engines.base import Engine
    from ooodist.graph.recurrent import put_recurrent_gradients_after_loop
    from ooodist.job.distribute import distribute
    from ooodist.job.pipelined import pipelined
    from ooodist.launcher.function.start import run
    from ooodist.step.all_ranks.objects import allgather_object, broadcast_object
    from ooodist.step.all_ranks.tensors import allgather, allreduce, barrier
    from ooodist.step.feature import Feature
    from ooodist.step.optimizer import apply
    from ooodist.step.tape import DistributedGradientTape
    from ooodist.trainer.fit import flush, whole
    from ooodist.transfer.description_check import check_description
    from ooodist.transfer.graph.description import LayerDescription, describe_layer
    from ooodist.zoo.api import Zoo
    from ooodist.zoo.start import warm_start

__version__ = "0.1.0"
__all__ = [
    "DistributedGradientTape",
    "Feature",
    "LayerDescription",
    "UserError",
    "WorkerError",
    "Zoo",
    "allgather",
    "allgather_object",
    "allreduce",
    "apply",
    "barrier",
    "broadcast",
    "broadcast_object",
    "check_description",
    "describe_layer",
    "distribute",
    "flush",
    "init",
    "local_rank",
    "local_size",
    "pipelined",
    "put_recurrent_gradients_after_loop",
    "rank",
    "run",
    "shard",
    "shutdown",
    "size",
    "warm_start",
    "whole",
]

# Modules of the names that are imported above for type checkers only.
_HOME = {
    "init": "ooodist.engines",
    "shutdown": "ooodist.engines",
    "shard": "ooodist.data.sharding",
    "distribute": "ooodist.job.distribute",
    "pipelined": "ooodist.job.pipelined",
    "run": "ooodist.launcher.function.start",
    "warm_start": "ooodist.zoo.start",
    "LayerDescription": "ooodist.transfer.graph.description",
    "describe_layer": "ooodist.transfer.graph.description",
    "check_description": "ooodist.transfer.description_check",
    "Zoo": "ooodist.zoo.api",
    "put_recurrent_gradients_after_loop": "ooodist.graph.recurrent",
    "flush": "ooodist.trainer.fit",
    "whole": "ooodist.trainer.fit",
    "DistributedGradientTape": "ooodist.step.tape",
    "Feature": "ooodist.step.feature",
    "apply": "ooodist.step.optimizer",
    "allreduce": "ooodist.step.all_ranks.tensors",
    "allgather": "ooodist.step.all_ranks.tensors",
    "allgather_object": "ooodist.step.all_ranks.objects",
    "broadcast_object": "ooodist.step.all_ranks.objects",
    "barrier": "ooodist.step.all_ranks.tensors",
}


def rank() -> int:
    """The number of this process among the ranks, from 0."""
    return _engine().rank


def size() -> int:
    """The number of ranks."""
    return _engine().size


def local_rank() -> int:
    """The number of this process among the ranks of its host, from 0."""
    return _engine().local_rank


def local_size() -> int:
    """The number of ranks on this host.

    Raises:
        UserError: it is not known, as BytePS's own launcher does not count the ranks of a host.
    """
    size = _engine().local_size
    if size is None:
        raise UserError(
            "local_size is not known, as BytePS's own launcher does not count the ranks of a host; "
            "start the job by python -m ooodist.launch, or set OOODIST_LOCAL_RANK and "
            "OOODIST_LOCAL_SIZE for each process"
        )
    return size


def broadcast(variables: Sequence[Any], root: int = 0) -> None:
    """Gives every rank the values that ``variables`` have on rank ``root``.

    Args:
        variables: variables of Keras or TensorFlow, the same ones on all ranks.
        root: rank that has the values, from 0.
    """
    from ooodist.step.replicas import broadcast_variables

    broadcast_variables(_engine(), variables, root)


def _engine() -> Engine:
    from ooodist import engines

    return engines.current()


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # a type checker would accept any name as an attribute

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            if "tensorflow" not in sys.modules:
                # Read at its import. Its C++ then logs errors only, as in python -m ooodist.train.
                os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            with importing_tensorflow():
                module = importlib.import_module(_HOME[name])
            return getattr(module, name)
        raise AttributeError(f"module 'ooodist' has no attribute {name!r}")
