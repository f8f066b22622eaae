"""Formats the summary of a finished job: what was trained, how well, how fast, and its files."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from ooodist.checkpoint import folder as folders
from ooodist.data_parallel.live_strategy import LiveDataParallel
from ooodist.job.preparation import CONFIG_NAME, PreparedJob
from ooodist.planner.pipeline.plan import AUTO
from ooodist.report import step_trace
from ooodist.trainer.callbacks import Best
from ooodist.trainer.progress import duration
from ooodist.transfer.provenance import start_of
from ooodist.util.quantity import counted

logger = logging.getLogger("ooodist")

MOST_OFF = 0.25  # of a predicted step; steps that are off by more are warned of

CSV_NAME = "history.csv"
MODEL_NAME = "model.keras"
TENSORBOARD_NAME = "tensorboard"
SELECTION_NAME = "selection.png"  # of elastic training, as written by elastic/figures.py


def summary(
    job: PreparedJob,
    result: Mapping[str, float],
    best: Best | None,
    step_seconds: float | None,
    total_seconds: float,
    registered: str | None = None,
) -> str:
    """The text, with a line for each fact.

    Args:
        result: metrics of the final evaluation.
        step_seconds: median seconds of a step; None if there were too few.
        total_seconds: seconds from the start of the job, without the imports.
        registered: id of the model in the zoo; None if it was not added to one.
    """
    config, engine = job.config, job.engine
    model = f"{job.model.name}, {job.model.count_params():,} parameters"
    facts = [
        ("trained", f"{model}, on {job.data.description}"),
        ("workers", f"{engine.size} (engine {engine.name}), {_batch(job)}{_cores()}"),
        _how(job),
        *_elastic(job),
        *_warm_start(job),
    ]
    if skipped := job.strategy.watch.num_skipped:
        facts.append(("left out", f"{counted(skipped, 'step')}, as gradients were not finite"))
    if result:
        values = ", ".join(f"{name} {value:.4f}" for name, value in result.items())
        facts.append(("validation", values))
    if step_seconds:
        samples = job.global_batch / step_seconds
        predicted = job.strategy.predicted_seconds
        beside = "" if predicted is None else f"; predicted {predicted * 1000:.1f}"
        speed = f"{step_seconds * 1000:.1f} ms a step (median{beside}), {samples:.0f} samples/s"
        facts.append(("speed", speed))
    facts.append(("time", f"{duration(total_seconds)} in all"))
    if saved := folders.checkpoints(job.folder):
        facts.append(("checkpoint", str(saved[-1][1])))
    facts += [(_KIND_OF_FILE[name], str(job.folder / name)) for name in _files(job)]
    if registered is not None and config.warm_start is not None:
        facts.append(("registered", f"{registered} in {config.warm_start.zoo}"))
    saved_best = folders.best_in(job.folder)
    if best is not None and best.best is not None and saved_best is not None:
        note = f"epoch {best.best_epoch + 1}, {best.monitor} {best.best:.4f}"
        facts.append(("best", f"{saved_best} ({note})"))
    return "\n".join(f"{name:<13}{value}" for name, value in facts)


def compare(predicted: float | None, measured: float | None) -> None:
    """Warns if the last steps took longer or shorter than predicted; seconds, None if unknown."""
    if predicted and measured and abs(measured / predicted - 1) > MOST_OFF:
        logger.warning(
            "the last steps took %.1f ms, where the plan predicts %.1f ms; what no plan knows of "
            "can be the reason: other programs on these machines, callbacks, slow data, what "
            "shard_optimizer sends",
            measured * 1e3,
            predicted * 1e3,
        )


def _batch(job: PreparedJob) -> str:
    parallel, batch = job.config.parallel, job.config.batch
    if parallel is None:
        return f"batch {batch} each"
    return f"batch {batch}" if parallel.data == 1 else f"batch {batch} for each pipeline"


def _cores() -> str:
    """How many cores this worker has, if it may not use all of its machine's."""
    cores = len(os.sched_getaffinity(0))
    if cores == os.cpu_count():
        return ""
    return f", {counted(cores, 'core')} each"


def _how(job: PreparedJob) -> tuple[str, str]:
    """The order of the work, in a few words."""
    parallel, order = job.config.parallel, job.config.order
    if parallel is not None:
        schedule = job.strategy.inner.fastest.schedule
        of_auto = f"{AUTO}: " if parallel.schedule == AUTO and schedule.name != AUTO else ""
        pipelines = f"{parallel.data} pipelines, each of " if parallel.data > 1 else ""
        return (
            "pipeline",
            f"{pipelines}{counted(schedule.stages, 'stage')} on {counted(schedule.ranks, 'rank')}, "
            f"{counted(schedule.microbatches, 'micro-batch', 'es')}, "
            f"schedule {of_auto}{schedule.name}",
        )
    name = order.name if order.k is None else f"first_k, k = {order.k}"
    strategy = job.strategy
    if isinstance(strategy, LiveDataParallel):
        if strategy.tried is None:
            return "order", f"{name}: the default, as the training was too short to plan for"
        name = f"{name}: {strategy.tried}, the fastest of those tried"
    steps = strategy.steps_per_execution
    return "order", f"{name}, {counted(steps, 'step')} per execution"


def _elastic(job: PreparedJob) -> list[tuple[str, str]]:
    """What elastic training did, if the job was elastic."""
    config, state = job.config.elastic, job.strategy.selection()
    if config is None or state is None:
        short = "rho auto: all was trained, as the training was too short to try less"
        return [] if config is None or config.rho != "auto" else [("elastic", short)]
    renewals = state["renewals"]
    changed = sum(renewal["changed"] for renewal in renewals)
    return [
        (
            "elastic",
            f"rho {config.rho}, selected by {config.select} {counted(len(renewals), 'time')}, "
            f"{counted(changed, 'time')} otherwise than before, "
            f"in {sum(renewal['seconds'] for renewal in renewals):.1f} s",
        )
    ]


def _warm_start(job: PreparedJob) -> list[tuple[str, str]]:
    """Where the start weights came from, if a zoo was asked."""
    start = start_of(job.model)
    if start is None:
        return [] if job.config.warm_start is None else [("warm start", "none: it started cold")]
    share = f"{100 * start.carried:.0f} % of the parameters"
    return [("warm start", f"{start.parent}, score {start.score:.2f}, {share} from there")]


_KIND_OF_FILE = {
    MODEL_NAME: "model",
    CSV_NAME: "log",
    TENSORBOARD_NAME: "tensorboard",
    step_trace.FILE_NAME: "trace",
    SELECTION_NAME: "selection",
    CONFIG_NAME: "job file",
}


def _files(job: PreparedJob) -> list[str]:
    return [name for name in _KIND_OF_FILE if (job.folder / name).exists()]
