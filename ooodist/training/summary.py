"""What a finished job prints: what was trained, how well, how fast, and where its files are."""

from __future__ import annotations

from collections.abc import Mapping

from ooodist.report import trace
from ooodist.training import checkpoint
from ooodist.training.callbacks import Best
from ooodist.training.preparation import CONFIG_NAME, Job
from ooodist.training.progress import duration

CSV_NAME = "history.csv"
MODEL_NAME = "model.keras"
TENSORBOARD_NAME = "tensorboard"


def summary(
    job: Job,
    result: Mapping[str, float],
    best: Best | None,
    step_seconds: float | None,
    total_seconds: float,
) -> str:
    """The text, of a line for each fact.

    Args:
        result: of the final evaluation.
        step_seconds: median of a step; None where too few were run to tell.
        total_seconds: from the start of the job, without the imports.
    """
    config, engine = job.config, job.engine
    model = f"{job.model.name}, {job.model.count_params():,} parameters"
    order = config.order.name if config.order.k is None else f"first_k, k = {config.order.k}"
    steps_per_launch = job.model.ooodist.steps_per_launch
    plural = "s" if steps_per_launch > 1 else ""
    facts = [
        ("trained", f"{model}, on {job.data.description}"),
        ("workers", f"{engine.size} (engine {engine.name}), batch {config.batch} each"),
        ("order", f"{order}, {steps_per_launch} step{plural} a launch"),
    ]
    if result:
        values = ", ".join(f"{name} {value:.4f}" for name, value in result.items())
        facts.append(("validation", values))
    if step_seconds:
        samples = config.batch * engine.size / step_seconds
        speed = f"{step_seconds * 1000:.1f} ms a step (median), {samples:.0f} samples/s"
        facts.append(("speed", speed))
    facts.append(("time", f"{duration(total_seconds)} in all"))
    if saved := checkpoint.epochs(job.folder):
        facts.append(("checkpoint", str(job.folder / checkpoint.file_name(saved[-1]))))
    facts += [(_KIND_OF_FILE[name], str(job.folder / name)) for name in _files(job)]
    if best is not None and best.best is not None and (job.folder / checkpoint.BEST_NAME).exists():
        note = f"epoch {best.best_epoch + 1}, {best.monitor} {best.best:.4f}"
        facts.append(("best", f"{job.folder / checkpoint.BEST_NAME} ({note})"))
    return "\n".join(f"{name:<13}{value}" for name, value in facts)


_KIND_OF_FILE = {
    MODEL_NAME: "model",
    CSV_NAME: "log",
    TENSORBOARD_NAME: "tensorboard",
    trace.FILE_NAME: "trace",
    CONFIG_NAME: "job file",
}


def _files(job: Job) -> list[str]:
    return [name for name in _KIND_OF_FILE if (job.folder / name).exists()]
