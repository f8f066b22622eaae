"""Runs one training job on one rank, from its job file.

::

    run ──> on_all_ranks    connects the ranks by an engine; an error ends all    all_ranks.py
              ──> set_up    checkpoint, data, model, strategy and plan            preparation.py
              ──> train     fits with callbacks, evaluates, saves, reports        here
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from ooodist.config.job import Config
from ooodist.engines.base import Engine
from ooodist.engines.rank_0 import on_rank_0
from ooodist.job.all_ranks import on_all_ranks
from ooodist.job.preparation import PreparedJob, set_up
from ooodist.job.reporting.callbacks import epoch_log, reports
from ooodist.job.reporting.summary import MODEL_NAME, compare, summary
from ooodist.job.saving import best_of, checkpoints, save_model
from ooodist.job.termination import AgreeOnTheEnd, Termination
from ooodist.trainer.callbacks import SeedEachEpoch, StopOnInvalidLoss
from ooodist.trainer.progress import StepTimer
from ooodist.trainer.watchdog import Watchdog
from ooodist.util import folder_lock
from ooodist.util.patience import Patience

logger = logging.getLogger("ooodist")

PATIENCE, RESTART_PATIENCE = 1.0, 60.0  # seconds for another job to leave the output folder


def run(config: Config) -> int:
    """Runs the job; returns the exit code, or ends the process if other ranks may not arrive."""
    started, termination = time.monotonic(), Termination()

    def work(engine: Engine) -> None:
        termination.started(engine.rank)
        with _holding_output(config, engine):
            train(set_up(config, engine), started, termination)

    with termination.watching():
        return on_all_ranks(config, work)


@contextlib.contextmanager
def _holding_output(config: Config, engine: Engine) -> Iterator[None]:
    """Keeps other jobs out of the output folder. Raises UserError, on all ranks."""
    # What is started again, elsewhere perhaps, may meet the end of the one before.
    patience = RESTART_PATIENCE if config.checkpoint.restart else PATIENCE
    with contextlib.ExitStack() as stack:
        lock = folder_lock.held(Path(config.output), "output", patience)
        with engine.agreed():
            on_rank_0(engine, lambda: stack.enter_context(lock))
        yield


def train(job: PreparedJob, started: float, termination: Termination | None = None) -> None:
    """Trains, evaluates, and prints a summary on rank 0; all ranks call it.

    Args:
        job: is ready to train.
        started: when, by time.monotonic().
        termination: asks ranks to stop; None: nothing does.

    Raises:
        Stopped: on all ranks, after a step of training, because one was asked to stop.
    """
    config, engine, strategy = job.config, job.engine, job.strategy
    timer, best, log = StepTimer(), best_of(job), epoch_log(job)
    is_stopped = best is not None and best.has_stopped()
    epochs = job.first_epoch if is_stopped else config.epochs
    if job.first_epoch >= epochs:
        logger.info("nothing is left to train after epoch %d", job.first_epoch)
    saver = checkpoints(job, best, log, epochs)
    # A pipeline has its own timeout, with a better message: let that come first.
    patience, times = Patience(config.timeout), 1 if config.parallel is None else 2
    watchdog = Watchdog(patience, engine.rank, engine.name, job.folder, times=times)
    callbacks = [
        *([] if config.on_nan == "ignore" else [StopOnInvalidLoss()]),
        SeedEachEpoch(config.seed, job.worker),
        *job.callbacks,  # before what writes logs and saves what they change
        *([best] if best is not None else []),
        log,
        saver,
        timer,
        *reports(job, timer, epochs),
        watchdog,
    ]
    if termination is not None:
        callbacks.append(AgreeOnTheEnd(termination, strategy.watch.notices))
    result, registered = {}, None
    watchdog.start()
    try:
        job.model.fit(
            job.data.train,
            epochs=epochs,
            initial_epoch=min(job.first_epoch, epochs),
            steps_per_epoch=job.steps_per_epoch,
            validation_data=job.data.validation,
            callbacks=callbacks,
            shuffle=False,  # the stream is shuffled already
            verbose=0,
        )
        if job.data.validation is not None:
            result = job.model.evaluate(
                job.data.validation, return_dict=True, verbose=0, callbacks=[watchdog]
            )
    finally:  # the caller's process may live on
        watchdog.stop()
        if termination is not None:
            termination.trained()
        saver.settle(patience.seconds)
    strategy.watch.check_weights()
    if config.warm_start is not None and config.warm_start.register:
        from ooodist.job import warm_start as warm_job  # imports gRPC

        with strategy.whole(root=0):
            registered = warm_job.register(config, engine, job.data, job.model, result)
    if config.checkpoint.is_wanted:
        save_model(job, best)
        saver.finish_copies(job.folder / MODEL_NAME)
    if engine.rank == 0:
        strategy.write_plan(job.folder)
        strategy.write_report(job.folder)
        seconds = time.monotonic() - started
        compare(strategy.predicted_seconds, timer.recent())
        print(summary(job, result, best, timer.median(), seconds, registered), flush=True)
