"""The callbacks by which a job shows its progress and writes curves, traces and metrics."""

from __future__ import annotations

from pathlib import Path

import keras

from ooodist.job.preparation import PreparedJob
from ooodist.job.reporting.operator_metrics import WriteMetrics
from ooodist.job.reporting.speeds import Speeds, WriteSpeeds
from ooodist.job.reporting.summary import CSV_NAME, TENSORBOARD_NAME
from ooodist.report.data_parallel.trace import Trace
from ooodist.report.pipeline.trace import PipelineTrace
from ooodist.trainer.callbacks import EpochLog
from ooodist.trainer.progress import Progress, StepTimer


def epoch_log(job: PreparedJob) -> EpochLog:
    """Makes what keeps the logs of every epoch, also of those before this run."""
    history = [] if job.source is None else job.source.state.history
    is_written = job.config.report.csv and job.engine.rank == 0
    return EpochLog(history, job.folder / CSV_NAME if is_written else None)


def reports(job: PreparedJob, timer: StepTimer, epochs: int) -> list[keras.callbacks.Callback]:
    """Makes the callbacks of this rank; most are rank 0's alone.

    Args:
        job: is ready to train.
        timer: a callback that runs before these.
        epochs: number of epochs of the whole run.
    """
    report, trace = job.config.report, None
    traces: list[keras.callbacks.Callback] = []
    if report.trace and job.config.parallel is not None:
        traces.append(PipelineTrace(job.folder, report.trace))
    elif report.trace and job.engine.rank == 0:
        traces.append(trace := Trace(job.folder, report.trace))
    if job.engine.rank:
        return traces
    speeds = Speeds(timer, job.global_batch, trace)
    callbacks: list[keras.callbacks.Callback] = [
        Progress(
            timer,
            global_batch=job.global_batch,
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
        folder = job.folder / TENSORBOARD_NAME
        callbacks += [
            keras.callbacks.TensorBoard(str(folder), update_freq="epoch", write_graph=False),
            WriteSpeeds(folder, speeds),
        ]
    return [*callbacks, *traces]
