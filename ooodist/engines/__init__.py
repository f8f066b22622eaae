"""Connects this process to its job (``init``) and provides the engine in use (``current``)."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ooodist.engines import kinds
from ooodist.engines.detect import check_name, check_size, choose
from ooodist.engines.heartbeat import heartbeat_settings
from ooodist.engines.kinds import Kind
from ooodist.engines.timeout import abort, ending_after
from ooodist.errors import UserError
from ooodist.util import log
from ooodist.util.packages import importing_tensorflow

if TYPE_CHECKING:
    from ooodist.engines.base import Engine

__all__ = ["abort", "alone", "current", "in_use", "init", "shutdown"]

_log = logging.getLogger("ooodist")
_current: Engine | None = None
_was_shut_down = False


def init(
    engine: str = "auto",
    *,
    workers: int | None = None,
    timeout: float = 600.0,
    stall_seconds: float | None = None,
    planned: bool = False,
    partition_bytes: int | None = None,
    pieces_in_flight: int | None = None,
) -> Engine:
    """Connects this process to the others of the job; call it before TensorFlow does anything.

    Unless the program configures Python's logging, rank 0 then shows on standard error what
    ooodist logs.

    Args:
        engine: "local", "collective", "horovod", "byteps", "mpi", that of a package, or "auto": the
            engine that the process was started for.
        workers: the number of workers that there must be; None: as many as were started.
        timeout: seconds to wait for the others before the process ends with exit code 1; they
            may still be importing TensorFlow, which takes minutes from a file system that many
            hosts share. A rank waits as long in ``fit`` or ``evaluate`` for ranks that have not
            called it.
        stall_seconds: seconds without progress after which the job is ended; before that, Horovod
            logs which exchanges wait for which ranks. None: the library's default.
        planned: configure the engine for exchanges that follow a plan (see
            ``Kind.planned_settings``).
        partition_bytes: the plan's partition size in bytes, if it is known already.
        pieces_in_flight: the credit of a plan for BytePS, if it is known already; 0: any number.

    Raises:
        UserError: the engine is unknown, not built, or not the one that the process was started
            for; the number of workers differs; another engine is in use, or was shut down.
    """
    global _current
    if _current is not None:
        if check_name(engine, "engine") not in ("auto", _current.name):
            raise UserError(
                f"engine {engine!r} was asked for, but engine {_current.name} is in use already; "
                "a process has one engine: call ooodist.init once, before anything else"
            )
        check_size(_current.name, _current.size, os.environ, workers)
        return _current
    if _was_shut_down:
        raise UserError("ooodist.init after ooodist.shutdown: start a new process instead")
    name, reason = choose(engine, os.environ, workers)
    kind = kinds.find(name)
    if planned:
        _set_up_for_plans(kind.planned_settings(None, partition_bytes, pieces_in_flight))
    limits = kind.settings(os.environ, stall_seconds) | heartbeat_settings(kind, os.environ)
    for variable, value in limits.items():
        os.environ.setdefault(variable, value)
    made = _make(kind, timeout)
    check_size(name, made.size, os.environ, workers)
    log.show(made.rank)
    _log.info("engine %s (%s): rank %d of %d", name, reason, made.rank, made.size)
    if made.size > 1 and made.rank == 0:
        atexit.register(_name_models_trained_alone)
    _current = made
    return made


def current() -> Engine:
    """The engine in use. Raises UserError before ``init`` and after ``shutdown``."""
    if _current is None:
        raise UserError("no engine is in use: call ooodist.init() first")
    return _current


def in_use() -> Engine | None:
    """The engine in use; None before ``init`` and after ``shutdown``."""
    return _current


def shutdown() -> None:
    """Ends the job cleanly; all ranks must call it. The second call does nothing."""
    global _current, _was_shut_down
    if _current is not None:
        made, _current = _current, None
        _was_shut_down = True
        made.shutdown()


def alone() -> Engine:
    """Makes an engine that exchanges nothing, to trace a step of one process."""
    return _class_of(next(kind for kind in kinds.kinds().values() if kind.is_alone))()


def _name_models_trained_alone() -> None:
    """Warns, when the program ends, of models whose training exchanged nothing."""
    if "keras" not in sys.modules:
        return
    from ooodist.compat.keras_model import trained_models

    for model in trained_models():
        if not hasattr(model, "ooodist"):
            _log.warning(
                "model %s was trained without the other workers, as it was not given to "
                "ooodist.distribute: model = ooodist.distribute(model) after compile",
                model.name,
            )


def _set_up_for_plans(settings: Mapping[str, str]) -> None:
    for variable, value in settings.items():
        if os.environ.setdefault(variable, value) != value:
            _log.info("%s=%s is kept (a plan wants %s)", variable, os.environ[variable], value)


def _make(kind: Kind, timeout: float) -> Engine:
    try:
        make = _class_of(kind)
    except UserError:  # there is no TensorFlow
        raise
    except Exception as error:  # a library built for another TensorFlow fails in many ways
        if kind.package is None:  # nothing to build: TensorFlow itself is broken
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(
            f"engine {kind.name} is not built here ({type(error).__name__}: {reason}): run "
            f"ooodist-engines {kind.name}, or take engine: collective"
        ) from error
    late = (
        f"engine {kind.name}: the other workers did not come within {timeout:g} s; look for errors "
        "of theirs, or raise timeout"
    )
    with ending_after(timeout, late):
        made = make()
    made.timeout = timeout
    return made


def _class_of(kind: Kind) -> type[Engine]:
    module, _, name = kind.engine.partition(":")
    with importing_tensorflow():
        found: type[Engine] = getattr(importlib.import_module(module), name)
    return found
