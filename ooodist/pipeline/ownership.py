"""Determines which ranks have which variables, and averages statistics.

A rank has the weights, the optimizer state and the statistics of its own stages. A weight that
stages of several ranks share is on each of them. All replicas have the same, but with a sharded
optimizer the state for a weight is in one of them alone::

    pipeline 2, data 2          rank 0      rank 1      rank 2      rank 3
    position, replica            0, 0        1, 0        0, 1        1, 1
    weight a of stage 0           a                       a
    its optimizer state           m                       m
      sharded to replica 1                                m
    a weight of both stages       b           b           b           b
      its state, sharded to 1                             n           n

The first rank that has a variable is its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from ooodist.compat.keras_model import frozen_weights
from ooodist.errors import UserError
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.stages import Stage
from ooodist.step.backward import names_by_id
from ooodist.step.optimizer import optimizer_state_of
from ooodist.step.replicas import average, check_copies

Holders = list[tuple[Any, tuple[int, ...]]]  # variables, each with the ranks that have it


def holders_of_variables(
    model: keras.Model,
    stages: Sequence[Stage],
    rank_of: Sequence[int],
    replicas: int = 1,
    updated_by: Mapping[str, int] | None = None,
) -> tuple[Holders, Holders]:
    """The variables of the model and of its optimizer, with the ranks that have them.

    All have what an optimizer keeps for all weights together, and a variable of the model that no
    stage uses.

    Args:
        model: with a built optimizer.
        stages: all stages of the model.
        rank_of: the position of each stage.
        replicas: number of pipelines.
        updated_by: by name, the only replica that updates a weight; all update the others.

    Raises:
        UserError: several ranks update the statistics of a layer, or it is unknown for which
            weight the optimizer keeps a variable.
    """
    holders: dict[int, set[int]] = {}
    for stage, position in zip(stages, rank_of, strict=True):
        for variable in stage.model.variables:
            holders.setdefault(id(variable), set()).add(position)
    everywhere, length = set(rank_of), max(rank_of) + 1
    positions_of = [(v, sorted(holders.get(id(v), everywhere))) for v in model.variables]
    frozen = {id(variable) for variable in frozen_weights(model)}
    for variable, positions in positions_of:
        is_shared = len(positions) > 1 and id(variable) in holders
        if is_shared and _is_statistic(variable) and id(variable) not in frozen:
            raise UserError(
                f"{variable.path} is made by a layer that is called on rank {positions[0]} and on "
                f"rank {positions[1]}: split the model so that all its calls are on one rank"
            )

    def ranks_at(positions: Iterable[int]) -> tuple[int, ...]:
        return tuple(r * length + p for r in range(replicas) for p in sorted(positions))

    weights = [(variable, ranks_at(positions)) for variable, positions in positions_of]
    names = names_by_id(model)
    that_update = {
        names[id(variable)]: those_that_update(names[id(variable)], ranks, length, updated_by or {})
        for variable, ranks in weights
    }
    optimizer_state = []
    trained = {names[id(weight)]: weight for weight in model.trainable_variables}
    for variable, weight in optimizer_state_of(model.optimizer, trained):
        if not weight and len(variable.shape):
            raise UserError(
                f"the optimizer {model.optimizer.name} keeps {variable.path}, of which nobody "
                "knows for which weight it is; take another optimizer for a pipeline"
            )
        ranks = that_update[weight] if weight else ranks_at(everywhere)
        optimizer_state.append((variable, ranks))
    return weights, optimizer_state


def those_that_update(
    name: str, ranks: tuple[int, ...], length: int, updated_by: Mapping[str, int]
) -> tuple[int, ...]:
    """Those ranks that update a weight, and so have the optimizer state for it.

    Args:
        name: of the weight.
        ranks: that have it.
        length: number of ranks of a pipeline.
        updated_by: the only replica that updates a weight, by its name; all update the others.
    """
    replica = updated_by.get(name)
    return tuple(rank for rank in ranks if replica in (None, rank // length))


def average_statistics(weights: Holders, ranks: Ranks) -> None:
    """Sets this rank's batch-norm statistics to the mean over the replicas of its stages.

    Statistics are the non-trainable float weights that differ between replicas; frozen ones do not.

    Args:
        weights: variables of the model.
        ranks: the position of this rank among all.
    """
    own = [v for v, holders in weights if ranks.world.rank in holders and _is_statistic(v)]
    average(ranks.peers, own)


def check_weights(weights: Holders, ranks: Ranks) -> None:
    """Checks that each trained weight is bit-identical on all ranks that have it.

    So must be a frozen one at several positions: a layer may change it in its forward pass.

    Raises:
        UserError: one is not; on all ranks.
    """

    def is_at_several(holders: Sequence[int]) -> bool:
        return len({rank % ranks.positions for rank in holders}) > 1

    trained = [
        (v, holders)
        for v, holders in weights
        if v.trainable or (_is_statistic(v) and is_at_several(holders))
    ]
    check_copies(ranks.world, trained)


def _is_statistic(variable: keras.Variable) -> bool:
    return not variable.trainable and keras.backend.is_float_dtype(variable.dtype)
