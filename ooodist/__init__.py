"""Distributed TensorFlow training that computes weight gradients out of order.

The names below load TensorFlow only when they are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ooodist.errors import UserError
from ooodist.util.importing import without_collection

if TYPE_CHECKING:
    from ooodist.engines import init, shutdown
    from ooodist.engines.base import Engine
    from ooodist.job.distribute import distribute
    from ooodist.job.pipelined import pipelined
    from ooodist.step.optimizer import apply
    from ooodist.step.tape import DistributedGradientTape
    from ooodist.zoo.start import warm_start

__version__ = "0.1.0"
__all__ = [
    "DistributedGradientTape",
    "UserError",
    "apply",
    "broadcast",
    "distribute",
    "init",
    "pipelined",
    "rank",
    "shutdown",
    "size",
    "warm_start",
]

# Where the names are that are imported above, for type checkers.
_HOME = {
    "init": "ooodist.engines",
    "shutdown": "ooodist.engines",
    "distribute": "ooodist.job.distribute",
    "pipelined": "ooodist.job.pipelined",
    "warm_start": "ooodist.zoo.start",
    "DistributedGradientTape": "ooodist.step.tape",
    "apply": "ooodist.step.optimizer",
}


def rank() -> int:
    """This process's number among the workers, from 0."""
    return _engine().rank


def size() -> int:
    """The number of workers."""
    return _engine().size


def broadcast(variables: Sequence[Any], root: int = 0) -> None:
    """Gives every rank the values that ``variables`` have on rank ``root``.

    Args:
        variables: of Keras or TensorFlow, the same on all ranks.
        root: from 0.
    """
    from ooodist.step.replicas import broadcast_variables

    broadcast_variables(_engine(), variables, root)


def _engine() -> Engine:
    from ooodist import engines

    return engines.current()


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            with without_collection():
                module = importlib.import_module(_HOME[name])
            return getattr(module, name)
        raise AttributeError(f"module 'ooodist' has no attribute {name!r}")
