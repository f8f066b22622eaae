"""Runs one training job on one rank: sets up, trains, reports.

An error on all ranks ends each with the same message. An error on one rank while it trains ends
that rank at once, and the others in their next exchange.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import keras

from ooodist import engines
from ooodist.checkpoint import convert, parallel_write
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.copies import Copies
from ooodist.checkpoint.parts import Parts
from ooodist.checkpoint.state import State
from ooodist.config.job import Config
from ooodist.engines import detect, kinds
from ooodist.engines.base import Engine
from ooodist.engines.heartbeat import heartbeat_seconds
from ooodist.engines.rank_0 import on_rank_0
from ooodist.errors import SharedError, UserError, brief
from ooodist.job import causes
from ooodist.job.operator_metrics import WriteMetrics
from ooodist.job.preparation import PreparedJob, set_up
from ooodist.job.speeds import Speeds, WriteSpeeds
from ooodist.job.summary import CSV_NAME, MODEL_NAME, TENSORBOARD_NAME, compare, summary
from ooodist.job.termination import AgreeOnTheEnd, Termination
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.plan import Plan
from ooodist.profiler.conditions import versions
from ooodist.report.data_parallel.trace import Trace
from ooodist.report.pipeline.trace import PipelineTrace
from ooodist.step.optimizer import without_scaling
from ooodist.trainer.callbacks import (
    Best,
    EpochLog,
    SeedEachEpoch,
    StopOnInvalidLoss,
)
from ooodist.trainer.progress import Progress, StepTimer
from ooodist.trainer.saving import within_epoch
from ooodist.trainer.saving.checkpoints import Intervals, SaveCheckpoints, Stopped
from ooodist.trainer.saving.copying import Copying
from ooodist.trainer.saving.savers import Saver
from ooodist.trainer.watchdog import (
    FIRST_TIME_FACTOR,
    Watchdog,
    place_in_training,
    seconds_without_progress,
)
from ooodist.transfer import provenance
from ooodist.util import folder_lock, yaml_dataclass
from ooodist.util.patience import LEAST_SECONDS, Patience
from ooodist.util.program import (
    CRASH_CODE,
    INTERRUPTED_CODE,
    TERMINATED_CODE,
    USER_ERROR_CODE,
    print_error,
    refused,
)
from ooodist.util.replacing import INCOMPLETE_PREFIX, delete

logger = logging.getLogger("ooodist")

PATIENCE, RESTART_PATIENCE = 1.0, 60.0  # seconds for another job to leave the output folder
LINGER_SECONDS = 1.0  # before a rank ends, as others may still be receiving what it last sent


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


def on_all_ranks(config: Config, work: Callable[[Engine], None]) -> int:
    """Does the same work on all ranks of a job, which end together.

    Args:
        config: the job; says which engine.
        work: called with the engine.

    Returns:
        the exit code, unless the process ended because other ranks may not arrive.
    """
    try:
        plan = _plan_of_file(config)
        stall = config.timeout or LEAST_SECONDS
        name = config.engine if config.parallel is None else kinds.for_pipelines().name
        wanted = _wanted_size(config)
        if config.parallel is not None:  # its error says how many to start, which init cannot know
            detect.choose(name, os.environ, wanted, config.parallel.ranks)
        engine = engines.init(
            name,
            workers=wanted,
            timeout=FIRST_TIME_FACTOR * stall,
            stall_seconds=stall,
            planned=config.order.is_a_plan,
            partition_bytes=plan.partition_bytes if plan else None,
            pieces_in_flight=(plan.credit or 0) if plan and plan.by_urgency else None,
        )
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


def _wanted_size(config: Config) -> int | None:
    """How many processes there must be; None if the engine is not to check it."""
    if config.parallel is None:
        return config.workers
    return 1 if config.parallel.ranks == 1 else None  # preparation.py has a better message


def _plan_of_file(config: Config) -> Plan | None:
    """Reads the plan file, if any, as the engine needs parts of it before it starts."""
    return None if config.order.plan is None else plans.read(Path(config.order.plan))


def _end(message: str, code: int) -> NoReturn:
    print_error(message)
    time.sleep(LINGER_SECONDS)
    engines.abort(code)


def train(job: PreparedJob, started: float, termination: Termination | None = None) -> None:
    """Trains, evaluates, and prints a summary on rank 0; all ranks call it.

    Args:
        job: is ready to train.
        started: when, by time.monotonic().
        termination: asks ranks to stop; None: nothing does.

    Raises:
        Stopped: on all ranks, after a step of training, because one was asked to stop.
    """
    config, engine = job.config, job.engine
    timer = StepTimer()
    # A pipeline has its own timeout, with a better message: let that come first.
    times = 1 if config.parallel is None else 2
    patience = Patience(config.timeout)
    watchdog = Watchdog(patience, engine.rank, engine.name, job.folder, times=times)
    best = _best(job)
    history = [] if job.source is None else job.source.state.history
    epoch_log = EpochLog(history, _file(job, CSV_NAME, wanted=config.report.csv))
    epochs = config.epochs
    if best is not None and best.has_stopped():
        epochs = job.first_epoch
    if job.first_epoch >= epochs:
        logger.info("nothing is left to train after epoch %d", job.first_epoch)
    if job.source is not None and job.source.state.within is not None:
        restore = functools.partial(within_epoch.restore, job.engine, job.model, job.source.state)
        job.model.ooodist.go_on(job.batches_done, restore)
    copying = None
    if engine.rank == 0 and config.checkpoint.copy_to is not None:
        copying = Copying(Copies(config.checkpoint.copy_to), config.checkpoint.keep)
    saver = _saver(job, best, epoch_log, epochs, copying)
    callbacks = [
        *([] if config.on_nan == "ignore" else [StopOnInvalidLoss()]),
        SeedEachEpoch(config.seed, job.worker),
        *job.callbacks,  # before what writes logs and saves what they change
        *([best] if best is not None else []),
        epoch_log,
        saver,
        timer,
        *_reports(job, timer, epochs),
        watchdog,
    ]
    if termination is not None:
        callbacks.append(AgreeOnTheEnd(termination, job.model.ooodist.strategy.watch.notices))
    result = {}
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
    registered = None
    job.model.ooodist.strategy.watch.check_weights()
    if config.warm_start is not None and config.warm_start.register:
        from ooodist.job import warm_start as warm_job  # imports gRPC

        with job.model.ooodist.strategy.whole(root=0):
            registered = warm_job.register(config, engine, job.data, job.model, result)
    if config.checkpoint.is_wanted:
        _save_model(job, best)
        if copying is not None:
            copying.begin([job.folder / MODEL_NAME])
        saver.finish_copies()
    if engine.rank == 0:
        job.model.ooodist.strategy.write_plan(job.folder)
        job.model.ooodist.strategy.write_report(job.folder)
        seconds = time.monotonic() - started
        compare(job.model.ooodist.strategy.predicted_seconds, timer.recent())
        print(summary(job, result, best, timer.median(), seconds, registered), flush=True)


def _save_model(job: PreparedJob, best: Best | None) -> None:
    """Writes the trained model as a Keras file; all ranks call it. Raises UserError."""
    file = job.folder / MODEL_NAME
    if job.config.parallel is None:
        with job.engine.agreed():
            if job.engine.rank == 0:
                job.model.save(file)
        return
    # No rank has the whole model, but the last checkpoint is of its end.
    saved = folders.checkpoints(job.folder)
    last = saved[-1][1] if saved or job.source is None else job.source.file
    averaged = None
    if last.is_dir() and without_scaling(job.model.optimizer).use_ema:
        averaged = _averaged(job, last)  # fit ends with the averages, which no checkpoint has
    with job.engine.agreed():
        if job.engine.rank == 0:
            if averaged is not None:
                convert.merge(averaged, file)
                delete(averaged)
            elif last.is_dir():
                restored = best is not None and best.restore_best_weights
                convert.merge(last, file, best=restored)
            else:  # a Keras file from which there was nothing left to train
                folders.duplicate(last, file)


def _averaged(job: PreparedJob, last: Path) -> Path:
    """Writes the model in parts as it is now, beside the last checkpoint; all ranks call it."""
    parts = job.folder / f"{INCOMPLETE_PREFIX}model"
    with Parts(last) as saved:
        state = saved.state
    writers = job.model.ooodist.strategy.inner.writers()
    checks = job.config.on_nan != "ignore"
    parallel_write.write(job.engine, parts, job.model, state, writers, checks=checks)
    return parts


def _best(job: PreparedJob) -> Best | None:
    """Makes what finds the best epoch and, if wanted, stops early; None if neither is needed."""
    config = job.config
    if config.early_stopping is not None:
        best = Best(**yaml_dataclass.plain(config.early_stopping))
    elif job.data.validation is not None and config.checkpoint.is_wanted:
        best = Best(monitor="val_loss", patience=Best.NEVER)
    else:
        return None
    state = None if job.source is None else job.source.state.best
    if state is not None and state["monitor"] == best.monitor:
        best.restore(state, job.best_weights)
    return best


def _file(job: PreparedJob, name: str, *, wanted: bool) -> Path | None:
    """Where rank 0 writes a file; None on other ranks and if it is not wanted."""
    return job.folder / name if wanted and job.engine.rank == 0 else None


def _saver(
    job: PreparedJob, best: Best | None, epoch_log: EpochLog, epochs: int, copying: Copying | None
) -> SaveCheckpoints:
    config, parallel = job.config.checkpoint, job.config.parallel

    def state(epoch: int, step: int) -> State:
        batches = (epoch - job.first_epoch) * job.steps_per_epoch + step - job.batches_done
        return State(
            epoch=epoch,
            step=job.first_step + batches,
            seed=job.config.seed,
            size=job.workers,
            batch=job.config.batch,
            config=yaml_dataclass.plain(job.config),
            variables=(),  # described as they are written
            fingerprint="",
            history=list(epoch_log.history),
            best=None if best is None else best.state(),
            selection=job.model.ooodist.strategy.selection(),
            warm_start=provenance.plain_of(job.model),
            versions=versions(),
        )

    inner = job.model.ooodist.strategy.inner
    writers = None if parallel is None else inner.writers
    saver = Saver(job.folder, config.keep, job.engine, copying, inner.rank_state, writers)
    in_background = config.background
    if in_background is None:  # the copies would need more memory than the ranks may have
        in_background = parallel is None or parallel.memory_bytes is None
    return SaveCheckpoints(
        saver,
        Intervals(config.every_epochs, config.every_steps, 60 * config.every_minutes),
        state,
        best,
        background=in_background,
        epochs=epochs,
        steps_per_epoch=job.steps_per_epoch,
    )


def _reports(job: PreparedJob, timer: StepTimer, epochs: int) -> list[keras.callbacks.Callback]:
    """Makes the callbacks that show progress and write reports."""
    report = job.config.report
    traces: list[keras.callbacks.Callback] = []
    trace = None
    if report.trace and job.config.parallel is not None:
        traces.append(PipelineTrace(job.folder, report.trace))
    elif report.trace and job.engine.rank == 0:
        traces.append(trace := Trace(job.folder, report.trace))
    if job.engine.rank:
        return traces
    speeds = Speeds(timer, job.config.batch * job.workers, trace)
    callbacks: list[keras.callbacks.Callback] = [
        Progress(
            timer,
            global_batch=speeds.global_batch,
            epochs=epochs,
            steps_per_epoch=job.steps_per_epoch,
        )
    ]
    if report.metrics is not None:
        callbacks.append(
            WriteMetrics(
                Path(report.metrics),
                speeds,
                labels={"job": job.folder.name, "engine": job.engine.name},
                workers=job.engine.size,
                epochs=epochs,
                steps_per_epoch=job.steps_per_epoch,
            )
        )
    if report.tensorboard:
        log_folder = job.folder / TENSORBOARD_NAME
        callbacks.append(
            keras.callbacks.TensorBoard(str(log_folder), update_freq="epoch", write_graph=False)
        )
        callbacks.append(WriteSpeeds(log_folder, speeds))
    return [*callbacks, *traces]
