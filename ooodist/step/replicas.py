"""Synchronizes the replicas of a model: weights, batch-norm statistics, metrics."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np

from ooodist.compat.keras_model import set_path
from ooodist.engines.arrays import ArrayExchange
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step import metric_states
from ooodist.step.optimizer import optimizers_of


def broadcast_weights(engine: Engine, model: keras.Model) -> None:
    """Broadcasts rank 0's weights and optimizer state to every rank."""
    broadcast_variables(engine, alike_on_all(model))


def follow_rank_0(engine: Engine, variables: Sequence[Any]) -> bool:
    """Broadcasts those of rank 0's values that are others on some rank; returns whether any is.

    Args:
        variables: Keras or TensorFlow variables, the same ones in the same order on every rank.
    """
    if engine.size == 1:
        return False
    agree_on_names(engine, variables)
    different = that_differ(engine, variables)
    broadcast_variables(engine, different)
    return bool(different)


def alike_on_all(model: keras.Model, *, with_optimizer: bool = True) -> list[Any]:
    """The variables that all ranks begin with: weights, and the optimizer's state if wanted.

    The state of random generators (dropout) is not among them: ranks draw different numbers.
    """
    optimizers = optimizers_of(model) if with_optimizer else []
    found = [*model.variables, *(v for o in optimizers for v in o.variables)]
    return list({id(v): v for v in found if not is_random_state(v)}.values())


def that_differ(ranks: ArrayExchange, variables: Sequence[Any]) -> list[Any]:
    """Those of these variables that are not the same on all ranks."""
    checksums = ranks.gather(np.array([checksum(v) for v in variables], np.uint32))
    differs = (checksums != checksums[0]).any(axis=0)
    return [v for v, d in zip(variables, differs, strict=True) if d]


def broadcast_variables(engine: Engine, variables: Sequence[Any], root: int = 0) -> None:
    """Broadcasts the values that ``variables`` have on rank ``root`` to every rank.

    Args:
        variables: Keras or TensorFlow variables, the same ones in the same order on every rank.

    Raises:
        UserError: on all ranks, as :func:`agree_on_names` says.
    """
    if engine.size == 1:
        return
    agree_on_names(engine, variables)
    values = [_numpy(v) for v in variables]
    for variable, value in zip(variables, engine.broadcast(values, root), strict=True):
        variable.assign(value)


def agree_on_names(engine: Engine, variables: Sequence[Any]) -> None:
    """Makes all ranks call each variable as rank 0 does; its place says which one it is.

    Keras numbers the layers of a process, and a model that was loaded has other paths than one that
    was built. So what is one weight may have as many names as there are ranks; exchanges, plans and
    reports go by names, though.

    Raises:
        UserError: on all ranks, if variables have other shapes or dtypes, or names differ that
            cannot be changed; it names the first.
    """
    names = [getattr(v, "path", None) or v.name for v in variables]
    kinds = [
        f"{getattr(v.dtype, 'name', v.dtype)} {tuple(v.shape)}"
        + ("" if isinstance(v, keras.Variable) else f" {name}")  # whose name cannot be changed
        for v, name in zip(variables, names, strict=True)
    ]
    engine.check_each("variable", kinds, names)
    text = "\n".join(names)
    if not engine.ranks_that_differ(text.encode()):
        return
    of_rank_0 = engine.broadcast_text(text).split("\n")
    for variable, own, name in zip(variables, names, of_rank_0, strict=True):
        if own != name:
            set_path(variable, name)


def average_statistics(engine: Engine, model: keras.Model) -> None:
    """Sets batch-norm statistics to their mean over the ranks.

    While training, each rank keeps the statistics of its own batches; they are averaged where
    they are used or stored: before evaluation and at the end of each epoch. Statistics are the
    non-trainable float weights that differ between ranks: what training does not change (frozen
    weights, of which there may be very many) is neither sent nor copied.
    """
    fixed = [v for v in model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
    average(engine, fixed)


def average(ranks: ArrayExchange, variables: Sequence[Any]) -> None:
    """Sets variables to their means over the ranks; those that are the same on all stay."""
    if ranks.size > 1:
        different = that_differ(ranks, variables)
        reduce_together(different, lambda flat: ranks.all_reduce(flat, "mean"))


def check_replicas(engine: Engine, model: keras.Model) -> None:
    """Checks that all ranks have the same trainable weights; see :func:`check_copies`."""
    everywhere = range(engine.size)
    check_copies(engine, [(variable, everywhere) for variable in model.trainable_variables])


def check_copies(ranks: ArrayExchange, weights: Sequence[tuple[Any, Collection[int]]]) -> None:
    """Checks that weights are bit-identical on the ranks that have them.

    Args:
        ranks: all of them; all call it.
        weights: variables, each with the numbers of the ranks that have it.

    Raises:
        UserError: one is not; on all ranks.
    """
    if ranks.size == 1:
        return
    own = [checksum(v) if ranks.rank in holders else -1 for v, holders in weights]
    of_all = ranks.gather(np.array(own, np.int64))
    for (variable, holders), sums in zip(weights, of_all.T, strict=True):
        if len({*sums} - {-1}) > 1:
            raise UserError(
                f"weight {variable.path} is not the same on all ranks that have it "
                f"({', '.join(map(str, holders))}): something changes it on one of them alone, "
                "such as a callback; let it run on all ranks"
            )


def checksum(variable: Any) -> int:
    """The CRC-32 of a variable's bytes."""
    content = np.ascontiguousarray(_numpy(variable)).reshape(-1)
    return zlib.crc32(content.view(np.uint8).data)


def global_metrics(
    engine: Engine, model: keras.Model, result: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The metrics over the samples of all ranks.

    They are computed from the merged states (see :mod:`ooodist.step.metric_states`), which is exact
    even if ranks have seen different numbers of samples. The local states are restored.

    Args:
        result: computes the metrics from their present state.
    """
    state = [v for metric in model.metrics for v in metric.variables]
    if engine.size == 1 or not state:
        return result()
    local = [_numpy(v) for v in state]
    merging = [m for m in metric_states.metrics_of(model) if hasattr(m, "merge_state")]
    for metric in merging:
        metric_states.merge_states(engine, metric)
    merged_already = {id(v) for metric in merging for v in metric.variables}
    others = [v for v in state if id(v) not in merged_already]
    reduce_together(others, lambda flat: engine.all_reduce(flat, "sum"))
    merged = {name: np.asarray(value) for name, value in result().items()}
    for variable, value in zip(state, local, strict=True):
        variable.assign(value)
    return merged


def reduce_together(
    variables: Sequence[Any], all_reduce: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Reduces small variables in one exchange, in float64: exact for float32 and counts."""
    if not variables:
        return
    values = [_numpy(v) for v in variables]
    flat = np.concatenate([value.astype(np.float64).ravel() for value in values])
    parts = np.split(all_reduce(flat), np.cumsum([value.size for value in values])[:-1])
    for variable, value, part in zip(variables, values, parts, strict=True):
        variable.assign(part.reshape(value.shape).astype(value.dtype))


def is_random_state(variable: Any) -> bool:
    """Whether a variable is the state of a random generator, as dropout has one."""
    return "seed_generator_state" in variable.path


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(variable.numpy())  # a scalar's numpy() may be a plain number
