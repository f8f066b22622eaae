"""Distributed TensorFlow training that computes weight gradients out of order.

The names below load TensorFlow only when they are used.
"""

from __future__ import annotations

import importlib
from typing import Any

from ooodist.errors import UserError
from ooodist.importing import without_collection

__version__ = "0.1.0"

_HOME = {
    "init": "ooodist.engines",
    "shutdown": "ooodist.engines",
    "distribute": "ooodist.training.distribute",
    "pipelined": "ooodist.pipeline.training",
    "warm_start": "ooodist.warmup.start",
    "DistributedGradientTape": "ooodist.training.tape",
    "apply": "ooodist.training.optimizer",
}
__all__ = ["UserError", "broadcast", "rank", "size", *_HOME]


def rank() -> int:
    """This process's number among the workers, from 0."""
    return int(_engine().rank)


def size() -> int:
    """The number of workers."""
    return int(_engine().size)


def broadcast(variables: Any, root: int = 0) -> None:
    """Gives every rank the values that ``variables`` (a list) have on rank ``root``."""
    from ooodist.training.replicas import broadcast_variables

    broadcast_variables(_engine(), variables, root)


def _engine() -> Any:
    return importlib.import_module("ooodist.engines").current()


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with without_collection():
            module = importlib.import_module(_HOME[name])
        return getattr(module, name)
    raise AttributeError(f"module 'ooodist' has no attribute {name!r}")
