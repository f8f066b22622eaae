"""Which rank's value of a variable counts, and giving it to all others.

Each rank has all of the model, but trains the weights of its own stages alone. At the end of an
epoch the owners broadcast weights, statistics and the optimizer's state, so that evaluation,
checkpoints and callbacks see one model, as if one process had trained it.
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
    """The model's variables, and those of its optimizer, with their owners.

    A weight of several ranks is the same on all of them; the first is its owner. What an optimizer
    keeps for all weights together is the same everywhere, and left out.

    Raises:
        UserError: the statistics of a layer are made by several ranks.
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
    """Gives all ranks of the pipeline the owners' values."""
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
        ranks: the place of this one.
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
