"""Resumes from a checkpoint, of either form.

Where each rank has the whole model and optimizer, rank 0 reads it, and the other ranks get it
through the engine; so it may be on a disk that only rank 0's host has. Elsewhere each rank reads
what it needs.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import keras_file
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.copies import Copies
from ooodist.checkpoint.state import State, check_fits, place_text
from ooodist.compat.keras_deferred import has_value
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.profiler.conditions import versions
from ooodist.settings.sections import CheckpointConfig
from ooodist.step import replicas
from ooodist.step.optimizer import state_prefix, without_scaling
from ooodist.step.rank_state import RankState
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

_READ_IN_LANES = ("tfrecord", "tfds")  # their order depends on the samples per step
# Top-level keys that say where and how long to train, not what is trained.
_FREE_KEYS = (
    *("engine", "workers", "epochs", "output", "checkpoint", "report", "timeout"),
    *("planning", "warm_start"),
)


@dataclass(frozen=True)
class Source:
    """The checkpoint to resume from; ``file`` is a Keras file, or a folder of parts."""

    file: Path
    state: State


def find(checkpoint: CheckpointConfig, folder: Path) -> Source | None:
    """Finds the checkpoint that the job asks for; None if it asks for none. Called on rank 0.

    One that is elsewhere, in copies, is copied into the output folder.

    Raises UserError if it is missing or damaged, or if later checkpoints in the output folder would
    be overwritten, or copies of an earlier run.
    """
    resume = checkpoint.resume
    copies = None if checkpoint.copy_to is None else Copies(checkpoint.copy_to)
    has_copies = copies is not None and bool(copies.checkpoints())
    if checkpoint.restart:
        if folders.checkpoints(folder) or has_copies:
            resume = True
        else:
            logger.info("restart: there is no checkpoint in %s yet", folder)
    if resume is True and copies is not None and has_copies and not folders.checkpoints(folder):
        file, state = copies.fetch_newest(folder)
    elif resume is True:
        file, state = folders.latest(folder)
    elif isinstance(resume, str) and "://" in resume:
        file, state = Copies(resume, "checkpoint.resume").fetch_newest(folder)
    elif isinstance(resume, str) and folders.is_checkpoint(Path(resume)):
        file, state = Path(resume), folders.read_state(Path(resume))
    elif isinstance(resume, str):
        file, state = folders.latest(Path(resume))
    else:
        if folders.checkpoints(folder):
            raise UserError(
                f"output is {folder}, which has checkpoints of an earlier run; go on with it "
                "(--resume), give another folder (--output DIR), or delete it"
            )
        if has_copies:
            raise UserError(
                f"checkpoint.copy_to is {checkpoint.copy_to}, which has checkpoints of an earlier "
                "run; go on with it (--resume), give another address, or delete them"
            )
        return None
    later = [place for place, _ in folders.checkpoints(folder) if place > state.place]
    if later and resume is not True:
        raise UserError(
            f"checkpoint.resume is {resume}, of {state.where()}, but the output folder "
            f"{folder} has checkpoints of {place_text(later[-1])} that would be overwritten; "
            "give another folder (--output DIR), or delete them"
        )
    return Source(file, state)


def share(engine: Engine, source: Source | None) -> Source | None:
    """Rank 0's ``source`` on every rank."""
    text = ""
    if source is not None:
        text = json.dumps([str(source.file), yaml_dataclass.plain(source.state)])
    content = engine.broadcast_text(text)
    if not content:
        return None
    file, state = json.loads(content)
    return Source(Path(file), yaml_dataclass.read(State, state))


def batch_after_restart(
    source: Source | None, checkpoint: CheckpointConfig, batch: int, size: int
) -> int:
    """Keeps the samples per step of all workers together, if a job is started again.

    So steps, and a learning rate that depends on them, mean the same with another number of
    workers. If that does not divide the samples, a step has a few more or less.

    Args:
        source: the checkpoint to resume from.
        checkpoint: says whether this is a restart.
        batch: samples per worker and step that the job asks for.
        size: number of workers.

    Returns:
        samples per worker and step.
    """
    if source is None or not checkpoint.restart or source.state.size == size:
        return batch
    before = source.state.size * source.state.batch
    batch = max(1, round(before / size))
    logger.warning(
        "restart with %d workers instead of %d: batch %d instead of %d, %d samples a step (before: "
        "%d)",
        *(size, source.state.size, batch, source.state.batch, size * batch, before),
    )
    return batch


def start_step(source: Source | None, checkpoint: CheckpointConfig, batch: int, size: int) -> int:
    """The step of the sample stream at which the run begins.

    Raises UserError if the number of workers differs and the job does not allow that.
    """
    if source is None:
        return 0
    state = source.state
    may_differ = checkpoint.new_world_size or checkpoint.restart
    if state.size != size and not may_differ:
        raise UserError(
            f"checkpoint {source.file} is of {state.size} workers, this job has {size}; start "
            f"{state.size}, or allow it with --set checkpoint.new_world_size=true "
            "(random numbers, as of dropout, will then not be those of the uninterrupted run)"
        )
    samples = state.step * state.size * state.batch
    return -(-samples // (size * batch))


def batches_done(
    source: Source | None, *, batch: int, accumulate: int, size: int, steps_per_epoch: int
) -> int:
    """Counts the batches of the first epoch that were trained on before, in whole updates."""
    if source is None or source.state.within is None:
        return 0
    state = source.state
    samples = state.place[1] * state.size * state.batch
    updates = -(-samples // (size * batch * accumulate))
    return min(updates * accumulate, steps_per_epoch - accumulate)


def warn_of_changes(source: Source, config: Mapping[str, Any], size: int) -> None:
    """Logs in what this job differs from that of the checkpoint; ``config``: all of its keys."""
    state = source.state
    if state.size != size:
        logger.warning(
            "resuming with %d workers instead of %d: random number streams are new",
            size,
            state.size,
        )
    before, now = state.size * state.config["batch"], size * config["batch"]
    if before != now and config["data"]["name"] in _READ_IN_LANES:
        logger.warning(
            "resuming with %d samples a step instead of %d: data %s comes in another order; in "
            "the first epoch some samples come again and others not",
            now,
            before,
            config["data"]["name"],
        )
    for key, before, now in yaml_dataclass.differences(state.config, config):
        if key.split(".")[0] not in _FREE_KEYS:
            logger.warning("resuming with %s: %s instead of %s", key, now, before)
    for package, version in versions().items():
        if version != state.versions.get(package):
            logger.warning(
                "resuming with %s %s, but the checkpoint was written with %s: "
                "results may differ in the last bits",
                package,
                version,
                state.versions.get(package),
            )


def restore(engine: Engine, source: Source, model: keras.Model) -> list[np.ndarray] | None:
    """Loads the checkpoint into the compiled model and its optimizer, on every rank.

    The learning rate, unless scheduled, is the job's, not the checkpoint's. Returns the weights of
    the best epoch, if the checkpoint has them. Raises UserError on all ranks if it does not fit the
    model.
    """
    model.optimizer.build(_trained(model, source.state))
    check_fits(keras_file.variables_of(model), source.state.variables, source.file)
    best_weights = None
    with _keeping_rate(model):
        with engine.agreed():
            if engine.rank == 0:
                best_weights = _load(source, model)
        replicas.broadcast_weights(engine, model)
    if not engine.broadcast_text("yes" if best_weights is not None else ""):
        return None
    return engine.broadcast(model.get_weights() if best_weights is None else best_weights)


def _load(source: Source, model: keras.Model) -> list[Any] | None:
    """Sets all variables, and returns the weights of the best epoch, if there are any."""
    if source.file.is_dir():
        return _load_own(source, model)
    keras_file.load_variables(source.file, model, source.state)
    with KerasFile(source.file) as saved:
        return saved.best()


def _load_own(source: Source, model: keras.Model) -> list[Any] | None:
    """Sets the variables that have a value here; the same of the weights of the best epoch."""
    with folders.open_checkpoint(source.file) as saved:
        best_weights: list[Any] = [None] * saved.num_best
        for index, variable in enumerate(keras_file.kept(model)):
            if has_value(variable):
                variable.assign(saved.read(index))
                if index < saved.num_best:
                    best_weights[index] = saved.read_best(index)
    return best_weights or None


def restore_rank_state(engine: Engine, source: Source, rank_state: RankState) -> None:
    """Restores on every rank what its steps kept for themselves."""
    by_rank: Mapping[str, np.ndarray] = {}
    with engine.agreed():
        if engine.rank == 0:
            with folders.open_checkpoint(source.file) as saved:
                by_rank = saved.by_rank()
    rank_state.restore(by_rank, engine)


def restore_own(
    engine: Engine, source: Source, model: keras.Model
) -> list[np.ndarray | None] | None:
    """Loads a checkpoint, of either form, where each rank reads what it has.

    The learning rate, unless scheduled, is the job's, not the checkpoint's.

    Args:
        engine: the engine that connects the ranks.
        source: the checkpoint; on a disk that all ranks see.
        model: compiled and built; it is known which rank has what.

    Returns:
        the weights of the best epoch, if the checkpoint has them; None for those that this rank
        does not have.

    Raises:
        UserError: on all ranks, if it is damaged or does not fit the model, or one does not see it.
    """
    with _keeping_rate(model), engine.agreed():
        variables = keras_file.variables_of(model)
        check_fits(variables, source.state.variables, source.file, by_name=True)
        if not source.file.exists():
            raise UserError(
                f"rank {engine.rank} does not see the checkpoint {source.file}; in a pipeline, and "
                "with shard_optimizer, each rank reads its own part, so put it on a disk that all "
                "ranks see"
            )
        best_weights = _load_own(source, model)
    return best_weights


@contextlib.contextmanager
def _keeping_rate(model: keras.Model) -> Iterator[None]:
    """Gives the optimizer its learning rate back after this block, unless it is scheduled."""
    optimizer = model.optimizer
    rate = None if is_scheduled(optimizer) else np.asarray(optimizer.learning_rate)
    yield
    if rate is not None:
        optimizer.learning_rate = rate


def _trained(model: keras.Model, state: State) -> list[keras.Variable]:
    """The weights that the optimizer trains; a custom train_step may leave some out."""
    weights = model.trainable_variables
    if type(model).train_step is keras.Model.train_step:
        return list(weights)
    kept = [variable.path.rpartition("/")[2] for variable in state.variables]
    trained = [v for v in weights if any(name.startswith(state_prefix(v.path)) for name in kept)]
    return trained or list(weights)  # without optimizer state the choice does not matter


def is_scheduled(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the learning rate comes from a schedule."""
    return isinstance(without_scaling(optimizer).get_config()["learning_rate"], dict)
