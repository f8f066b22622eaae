"""What a job saves: checkpoints while it trains, the best of them, and the trained model."""

from __future__ import annotations

from pathlib import Path

from ooodist.checkpoint import convert, parallel_write
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.copies import Copies
from ooodist.checkpoint.parts import Parts
from ooodist.checkpoint.state import State
from ooodist.job.preparation import PreparedJob
from ooodist.job.reporting.summary import MODEL_NAME
from ooodist.profiler.conditions import versions
from ooodist.step.optimizer import without_scaling
from ooodist.trainer.callbacks import Best, EpochLog
from ooodist.trainer.saving.checkpoints import SaveCheckpoints
from ooodist.trainer.saving.copying import Copying
from ooodist.trainer.saving.savers import Saver
from ooodist.transfer import provenance
from ooodist.util import yaml_dataclass
from ooodist.util.replacing import INCOMPLETE_PREFIX, delete


def best_of(job: PreparedJob) -> Best | None:
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


def checkpoints(
    job: PreparedJob, best: Best | None, epoch_log: EpochLog, epochs: int
) -> SaveCheckpoints:
    """Makes what saves checkpoints, and copies them, as the job says.

    Args:
        job: is ready to train.
        best: of :func:`best_of`.
        epoch_log: whose history checkpoints keep.
        epochs: number of epochs of the whole run.
    """
    config, parallel, strategy = job.config.checkpoint, job.config.parallel, job.strategy

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
            selection=strategy.selection(),
            warm_start=provenance.plain_of(job.model),
            versions=versions(),
        )

    copying = None
    if job.engine.rank == 0 and config.copy_to is not None:
        copying = Copying(Copies(config.copy_to), config.keep)
    inner = strategy.inner
    writers = None if strategy.has_whole_optimizer else inner.writers
    saver = Saver(job.folder, config.keep, job.engine, copying, inner.rank_state, writers)
    in_background = config.background
    if in_background is None:  # the copies would need more memory than the ranks may have
        in_background = parallel is None or parallel.memory_bytes is None
    return SaveCheckpoints(
        saver,
        config,
        state,
        best,
        background=in_background,
        epochs=epochs,
        steps_per_epoch=job.steps_per_epoch,
    )


def save_model(job: PreparedJob, best: Best | None) -> None:
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
    writers = job.strategy.inner.writers()
    checks = job.config.on_nan != "ignore"
    parallel_write.write(job.engine, parts, job.model, state, writers, checks=checks)
    return parts
