"""ZeRO stage 1 over the replicas of a pipeline: each updates a part of the weights for all.

Each layer has one replica that updates its weights and keeps the optimizer's state for them::

    replica 0    gradient a, b --> sum of a --> update a --> new a --+--> new a, b
                                \\ /                                  |
                                / \\                                  |
    replica 1    gradient a, b --> sum of b --> update b --> new b --+--> new a, b

A reduction and a broadcast move as many bytes as the all-reduce that they replace. Weights are not
sliced (as in Rajbhandari et al., "ZeRO", SC 2020): the optimizers of Keras keep state weight by
weight, so that each update is bit for bit what it was, whatever the optimizer, also where it looks
at a whole weight (LAMB, Adafactor, Muon). The price is that a stage with one huge weight is divided
badly: the replica that updates it keeps all of its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.gradients import owners_of
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.pipeline.stages import Stage
from ooodist.step.sharding.ownership import divided
from ooodist.step.sharding.state import state_bytes


def replicas_that_update(
    model: keras.Model, stages: Sequence[Stage], rank_of: Sequence[int], replicas: int
) -> dict[str, int]:
    """The replica that updates each trained weight, by its name; the same on all ranks.

    Args:
        model: compiled; its weights need no values.
        stages: all stages of the model.
        rank_of: the position of each stage.
        replicas: number of pipelines.
    """
    sizes, owners = state_bytes(model), owners_of(stages, rank_of)
    # All of a layer goes to one replica: its gradients are computed together (see buckets.py).
    layers: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, positions in owners.items():
        layers.setdefault((name.rpartition("/")[0], positions), []).append(name)
    found = divided(
        [
            (names[0], sum(sizes[name] for name in names), positions)
            for (_, positions), names in layers.items()
        ],
        replicas,
    )
    return {name: found[names[0]] for names in layers.values() for name in names}


class NewWeights:
    """Gives all replicas the new values of weights that one of them has updated.

    Args:
        weights: of this rank, by name, in the same order on all its peers.
        updated_by: the replica that updates each weight, by its name.
        ranks: the position of this rank among all.
        transport: moves the values.
    """

    def __init__(
        self,
        weights: Mapping[str, keras.Variable],
        updated_by: Mapping[str, int],
        ranks: Ranks,
        transport: Transport,
    ) -> None:
        self._weights = [(weight, updated_by[name]) for name, weight in weights.items()]
        self._ranks = ranks
        self._transport = transport

    def __call__(self) -> None:
        """Exchanges the new values; all replicas of a position call it together.

        All are in transit at the same time, and each is assigned as soon as it is here.

        Raises:
            Stalled: another replica does not take part in time.
        """
        moving = [(weight, root, self._begin(weight, root)) for weight, root in self._weights]
        for weight, root, message in moving:
            self._transport.wait(message)
            if root != self._ranks.replica:
                weight.value.assign(message.arrays[0], read_value=False)

    def _begin(self, weight: keras.Variable, root: int) -> Message:
        if root == self._ranks.replica:
            value = np.asarray(weight.numpy())
        else:
            value = np.empty(tuple(weight.shape), tf.as_dtype(weight.dtype).as_numpy_dtype)
        name = f"the new value of {weight.path}"
        return self._transport.broadcast(name, self._ranks.peers, value, root)
