"""Determines which rank owns a variable, and broadcasts it from there.

Each rank has the whole model, but trains only the weights of its own stages. At the end of an epoch
the owners broadcast weights, statistics and optimizer state, so that evaluation, checkpoints and
callbacks see one model, as if one process had trained it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from mpi4py import MPI

from ooodist.engines.mpi import wait
from ooodist.errors import UserError
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.stages import Stage
from ooodist.step.optimizer import optimizer_state_of
from ooodist.step.replicas import checksum, reduce_together

Owned = list[tuple[Any, int]]  # variables, each with the position of its owner


def owned_variables(
    model: keras.Model, stages: Sequence[Stage], rank_of: Sequence[int]
) -> tuple[Owned, Owned]:
    """Returns the variables of the model and of its optimizer, with their owners.

    A weight of several ranks is identical on all of them; the first is its owner. What an optimizer
    keeps for all weights together is the same everywhere, and left out.

    Raises:
        UserError: several ranks update the statistics of a layer, or it is unknown for which
            weight the optimizer keeps a variable.
    """
    owner: dict[str, int] = {}
    for stage, position in zip(stages, rank_of, strict=True):
        for variable in stage.model.variables:
            first = owner.setdefault(variable.path, position)
            if first != position and not variable.trainable and _is_statistic(variable):
                raise UserError(
                    f"{variable.path} is made by a layer that is called on rank {first} and on "
                    f"rank {position}: split the model so that all its calls are on one rank"
                )
    weights = [(variable, owner[variable.path]) for variable in model.variables]
    optimizer_state = []
    paths = [variable.path for variable in model.trainable_variables]
    for variable, weight in optimizer_state_of(model.optimizer, paths):
        if weight:
            optimizer_state.append((variable, owner[weight]))
        elif len(variable.shape):
            raise UserError(
                f"the optimizer {model.optimizer.name} keeps {variable.path}, of which nobody "
                "knows for which weight it is; take another optimizer for a pipeline"
            )
    return weights, optimizer_state


def broadcast_owned(owned: Owned, pipeline: MPI.Comm) -> None:
    """Broadcasts the owners' values to all ranks of the pipeline."""
    for variable, owner in owned:
        value = np.ascontiguousarray(variable.numpy())
        content = value.reshape(-1).view(np.uint8)
        wait(pipeline.Ibcast(content, root=owner))
        if owner != pipeline.rank:
            variable.assign(value.reshape(variable.shape))


def average_statistics(owned: Owned, ranks: Ranks) -> None:
    """Sets this rank's batch-norm statistics to the mean over the replicas of its stages.

    Statistics are the non-trainable float weights that differ between replicas; frozen ones do not.

    Args:
        owned: variables of the model.
        ranks: the position of this rank among all.
    """
    own = [v for v, owner in owned if owner == ranks.position and _is_statistic(v)]
    if ranks.replicas == 1 or not own:
        return
    sums = np.array([checksum(variable) for variable in own], np.int64)
    lowest, highest = np.empty_like(sums), np.empty_like(sums)
    wait(ranks.peers.Iallreduce(sums, lowest, op=MPI.MIN))
    wait(ranks.peers.Iallreduce(sums, highest, op=MPI.MAX))

    def mean(flat: np.ndarray) -> np.ndarray:
        total = np.empty_like(flat)
        wait(ranks.peers.Iallreduce(flat, total, op=MPI.SUM))
        return total / ranks.replicas

    different = [v for v, differs in zip(own, lowest != highest, strict=True) if differs]
    reduce_together(different, mean)


def _is_statistic(variable: keras.Variable) -> bool:
    return not variable.trainable and keras.backend.is_float_dtype(variable.dtype)
