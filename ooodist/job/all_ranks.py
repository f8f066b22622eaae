"""Does work on all ranks of a job, which end together, and each with one message.

An error on all ranks ends each with the same message. An error on one rank while it trains ends
that rank at once, and the others in their next exchange.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from ooodist import engines
from ooodist.config.job import Config
from ooodist.engines import detect, kinds
from ooodist.engines.base import Engine
from ooodist.engines.heartbeat import heartbeat_seconds
from ooodist.errors import SharedError, UserError, brief
from ooodist.job import causes
from ooodist.planner.data_parallel import plan as plans
from ooodist.trainer.saving.checkpoints import Stopped
from ooodist.trainer.watchdog import FIRST_TIME_FACTOR, place_in_training, seconds_without_progress
from ooodist.util.patience import LEAST_SECONDS
from ooodist.util.program import (
    CRASH_CODE,
    INTERRUPTED_CODE,
    TERMINATED_CODE,
    USER_ERROR_CODE,
    print_error,
    refused,
)

logger = logging.getLogger("ooodist")

LINGER_SECONDS = 1.0  # before a rank ends, as others may still be receiving what it last sent


def on_all_ranks(config: Config, work: Callable[[Engine], None]) -> int:
    """Does the same work on all ranks of a job, which end together.

    Args:
        config: the job; says which engine.
        work: called with the engine.

    Returns:
        the exit code, unless the process ended because other ranks may not arrive.
    """
    try:
        engine = _start(config)
    except UserError as error:
        return refused(error)
    logger.setLevel(logging.WARNING if engine.rank else logging.INFO)
    hosts = ["a host not known"] * engine.size
    try:
        hosts = engine.gather_text(socket.gethostname())
        work(engine)
        engines.shutdown()
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED_CODE)
    except Stopped as stopped:
        logger.info("%s", stopped)
        engines.shutdown()
        return TERMINATED_CODE
    except Exception as error:
        _explain(error, config, engine, hosts)
    return 0


def _start(config: Config) -> Engine:
    """Connects this process to the others. Raises UserError."""
    # The engine needs parts of a plan that is there already before it starts.
    plan = None if config.order.plan is None else plans.read(Path(config.order.plan))
    name, workers, stall = config.engine, config.workers, config.timeout or LEAST_SECONDS
    if config.parallel is not None:
        name = kinds.for_pipelines().name
        # None: not checked when it starts, as what is checked later has a better message.
        workers = 1 if config.parallel.ranks == 1 else None
        # Its error says how many to start, which init cannot know.
        detect.choose(name, os.environ, workers, config.parallel.ranks)
    return engines.init(
        name,
        workers=workers,
        timeout=FIRST_TIME_FACTOR * stall,
        stall_seconds=stall,
        planned=config.order.is_a_plan,
        partition_bytes=plan.partition_bytes if plan else None,
        pieces_in_flight=(plan.credit or 0) if plan and plan.by_urgency else None,
    )


def _explain(error: Exception, config: Config, engine: Engine, hosts: Sequence[str]) -> NoReturn:
    """Ends this process with one message, or with the traceback if the cause is unknown."""
    if isinstance(error, SharedError) and engine.rank:
        time.sleep(LINGER_SECONDS)  # rank 0 prints it
        engines.abort(USER_ERROR_CODE)
    if isinstance(error, UserError):
        _end(str(error), USER_ERROR_CODE)
    if cause := causes.find(error, config):
        _end(f"rank {engine.rank}: {cause}", USER_ERROR_CODE)
    where = f"; here: {place_in_training()}"
    limit, waited = heartbeat_seconds(os.environ), seconds_without_progress()
    if silence := causes.silence(error, engine.rank, hosts, waited, limit):
        _end(f"{silence}{where}", CRASH_CODE)
    if causes.is_of_another_rank(error):
        what = f"rank {engine.rank} ends, as another rank is gone; that rank says why"
        _end(f"{what} ({brief(error):.200}){where}", CRASH_CODE)
    traceback.print_exc()
    engines.abort(CRASH_CODE)


def _end(message: str, code: int) -> NoReturn:
    print_error(message)
    time.sleep(LINGER_SECONDS)
    engines.abort(code)
