"""What each rank knows in the middle of an epoch, and no checkpoint has at its end.

* metrics, of the samples that this rank has seen in the epoch;
* states of random generators, as of dropout: ranks draw different numbers;
* batch-norm statistics, which each rank keeps until the epoch ends; those that differ.

With these, a run that goes on in the middle of an epoch is the uninterrupted one, bit for bit.
"""

from __future__ import annotations

import base64
import logging
from typing import Any

import keras
import numpy as np

from ooodist.checkpoint.arrays import as_bytes, dtype_of
from ooodist.checkpoint.state import State, WithinEpoch
from ooodist.compat.keras_deferred import has_value
from ooodist.compat.keras_model import build_with, compiled_metrics
from ooodist.engines.base import Engine
from ooodist.step import replicas

logger = logging.getLogger("ooodist")


def taken(engine: Engine, model: keras.Model, step: int) -> WithinEpoch:
    """What all ranks know after so many batches of an epoch; all ranks call it."""
    variables = _variables(model)
    chosen = [index for index, needed in enumerate(_are_needed(engine, model)) if needed]
    values = [_bytes_of(variables[index]) for index in chosen]
    there = np.array([has_value(variables[index]) for index in chosen])
    rows, are_there = engine.gather(np.concatenate([_NOTHING, *values])), engine.gather(there)
    found: dict[str, list[str | None]] = {}
    start = 0
    for place, (index, value) in enumerate(zip(chosen, values, strict=True)):
        found[str(index)] = [
            base64.b64encode(row[start : start + value.size]).decode() if is_there[place] else None
            for row, is_there in zip(rows, are_there, strict=True)
        ]
        start += value.size
    return WithinEpoch(step, found)


def restore(engine: Engine, model: keras.Model, state: State, batch: Any) -> None:
    """Sets what this rank knew; where that is of no use to this job, it logs what is lost.

    What another rank of its pipeline knew is of use, too: layers may be on other ranks now, as
    stages that are measured anew may be others.

    Args:
        engine: the engine that connects the ranks.
        model: compiled and built, but for its metrics.
        state: of the checkpoint, which was written inside of an epoch.
        batch: the next batch, by which metrics are built.
    """
    within = state.within
    assert within is not None
    metrics = compiled_metrics(model)
    if metrics is not None and not metrics.built and _is_plain(model):
        build_with(model, batch)
    variables = _variables(model)
    replica, replicas = model.ooodist.strategy.shard
    ranks = engine.size // replicas  # of a pipeline, which follow each other
    values = []
    for index, by_rank in within.values.items():
        own = None
        if len(by_rank) == engine.size and state.size == replicas:
            of_pipeline = by_rank[replica * ranks : (replica + 1) * ranks]
            known = (value for value in of_pipeline if value is not None)
            own = by_rank[engine.rank] or next(known, None)
        variable = variables[int(index)] if int(index) < len(variables) else None
        if variable is not None and not has_value(variable):
            continue
        content = base64.b64decode(own or "")
        if variable is None or own is None or len(content) != _bytes_of(variable).size:
            logger.warning(
                "the checkpoint was written in the middle of an epoch, by %d ranks with other "
                "metrics or other layers: the metrics of this epoch begin at its step %d, and "
                "random numbers are new",
                len(by_rank),
                within.step + 1,
            )
            return
        values.append((variable, content))
    for variable, content in values:
        value = np.frombuffer(content, dtype_of(variable.dtype))
        variable.assign(value.reshape(variable.shape))


def _is_plain(model: keras.Model) -> bool:
    return type(model).train_step is keras.Model.train_step


_NOTHING = np.zeros(0, np.uint8)


def _variables(model: keras.Model) -> list[Any]:
    """The variables that may be needed, in the same order on all ranks."""
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    states = [variable for variable in model.variables if replicas.is_random_state(variable)]
    return [*_statistics(model), *{id(each): each for each in (*metrics, *states)}.values()]


def _statistics(model: keras.Model) -> list[Any]:
    fixed = model.non_trainable_variables
    return [
        each
        for each in fixed
        if keras.backend.is_float_dtype(each.dtype) and not replicas.is_random_state(each)
    ]


def _are_needed(engine: Engine, model: keras.Model) -> list[bool]:
    """Which of the variables a checkpoint needs: statistics only where ranks differ."""
    statistics = _statistics(model)
    checksums = [replicas.checksum(each) if has_value(each) else -1 for each in statistics]
    by_rank = engine.gather(np.array(checksums, np.int64)).T
    differ = [len(set(of_one[of_one >= 0].tolist())) > 1 for of_one in by_rank]
    return [*differ, *(True for _ in _variables(model)[len(statistics) :])]


def _bytes_of(variable: Any) -> np.ndarray:
    """The bytes of a variable's value; zeros if this rank does not have it."""
    if has_value(variable):
        return np.asarray(as_bytes(np.asarray(variable.numpy())))
    return np.asarray(as_bytes(np.zeros(variable.shape, dtype_of(variable.dtype))))
