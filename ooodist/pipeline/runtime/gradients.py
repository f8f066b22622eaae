"""Sums the gradients of a rank's stages over micro-batches, stages and replicas.

::

    last W of a tensor --> sum over its owners (peers in other pipelines; other stages that share
    the weight) --> update

With a sharded optimizer, only the replica that updates the weight gets the sum (sharding.py).

A weight that stages of several ranks share (tied embeddings) is kept by all of them. Each gets the
sum of all gradients and makes the same update, so that the copies stay identical.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from ooodist.pipeline.layers.state import summed_as
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.pipeline.stages import Stage


class Gradients:
    """The gradient sums of the weights that this rank trains.

    Args:
        stages: all stages of the model.
        rank_of: the position of each stage.
        ranks: the position of this rank among all; all ranks make this object together.
        transport: moves the sums.
        updated_by: the only replica that updates a weight, by its path; all update the others.

    Attributes:
        accumulators: by path of the weight; stages add to them.
        owners: the positions that have each weight of the model, by path.
        own: all weights of this rank that can be trained, by path.
        variables: those of them that are trained, in the order of the model.
        updated: those of ``variables`` that this rank updates.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        rank_of: Sequence[int],
        ranks: Ranks,
        transport: Transport,
        updated_by: Mapping[str, int] | None = None,
    ) -> None:
        self.accumulators: dict[str, tf.Variable] = {}
        self.owners = owners_of(stages, rank_of)
        self._replica, self._replicas = ranks.replica, ranks.replicas
        self._updated_by = updated_by or {}
        self._transport = transport
        own: dict[str, keras.Variable] = {}
        uses: dict[str, int] = {}
        for stage, position in zip(stages, rank_of, strict=True):
            if position == ranks.position:
                for variable in stage.model.trainable_variables:
                    own.setdefault(variable.path, variable)
                    uses[variable.path] = uses.get(variable.path, 0) + 1
        self.own = own
        self.variables = list(own.values())
        self._uses = uses  # number of this rank's stages that have the weight
        # In the same order on all ranks, as MPI requires.
        groups = sorted({self.owners[path] for path in self.owners})
        communicators = {group: ranks.those_at(group) for group in groups}
        self._those = {path: communicators[self.owners[path]] for path in own}
        self._left: dict[str, int] = {}
        self._sums: dict[str, Message] = {}
        self._zero = tf.zeros([])
        self.select(None)

    def select(self, weights: Collection[str] | None) -> None:
        """Sums only these weights from now on. All ranks pass the same ones.

        Args:
            weights: paths; None for all.
        """
        self.variables = [
            variable for path, variable in self.own.items() if weights is None or path in weights
        ]
        self.updated = [variable for variable in self.variables if self.updates(variable.path)]
        # One call for all: a call for each sum takes longer than the update of a small model.
        self._read_all = tf.function(self._read, autograph=False)
        self._clear_all = tf.function(self._clear, autograph=False)

    def updates(self, path: str) -> bool:
        """Whether this rank's replica updates this weight."""
        return self._updated_by.get(path) in (None, self._replica)

    def begin(self) -> None:
        """Begins a step."""
        self._left = dict(self._uses)
        self._sums.clear()

    def stage_is_done(self, variables: Iterable[keras.Variable]) -> None:
        """Called when all micro-batches of a stage have added to these; starts complete sums."""
        for variable in variables:
            self._left[variable.path] -= 1
            # Ranks with other stages finish a shared weight in another order: its sum starts last.
            if not self._left[variable.path] and len(self.owners[variable.path]) == 1:
                self._begin_sum(variable.path)

    def begun_by(
        self, variables: Mapping[int, Sequence[keras.Variable]]
    ) -> dict[int, list[tf.Variable]]:
        """Returns, for each stage of this rank, the accumulators whose sums begin when it is done.

        Args:
            variables: the trained variables of each stage, by number.
        """
        begun: dict[int, list[tf.Variable]] = {}
        seen: set[str] = set()
        for number in sorted(variables):  # the first stage is the last to be done
            paths = [variable.path for variable in variables[number]]
            own = [path for path in paths if path not in seen and len(self.owners[path]) == 1]
            begun[number] = [self.accumulators[path] for path in own]
            seen.update(own)
        return begun

    def wait_for_begun(self) -> None:
        """Returns when all sums that have begun are complete. Raises Stalled."""
        for message in self._sums.values():
            self._transport.wait(message)

    def sums(self) -> list[tf.Tensor]:
        """Returns the gradients of ``updated``: sums over stages, means over replicas.

        Raises:
            Stalled: another rank does not take part in time.
        """
        for path in sorted(variable.path for variable in self.variables):  # as on the other ranks
            if len(self.owners[path]) > 1:
                self._begin_sum(path)
        found = self._read_all()
        for path, message in self._sums.items():
            self._transport.wait(message)
            if path not in found:  # another replica has the sum
                continue
            total = tf.convert_to_tensor(message.arrays[0], found[path].dtype)
            found[path] = total / self._replicas if self._replicas > 1 else total
        return [found[variable.path] for variable in self.updated]

    def _read(self) -> dict[str, tf.Tensor]:
        return {v.path: self.accumulators[v.path].read_value() for v in self.updated}

    def clear(self) -> None:
        """Sets the accumulators to zero."""
        self._clear_all(self._zero)

    def _clear(self, zero: tf.Tensor) -> None:
        # The zero is an argument: TensorFlow would keep constant zeros beside the sums. And one
        # after the other, or all zeros would exist beside the sums for a moment.
        done: list[tf.Operation] = []
        for variable in self.variables:
            accumulator = self.accumulators[variable.path]
            with tf.control_dependencies(done):
                zeros = tf.fill(accumulator.shape, tf.cast(zero, accumulator.dtype))
                done = [accumulator.assign(zeros, read_value=False)]

    def _begin_sum(self, path: str) -> None:
        communicator = self._those[path]
        if communicator.size > 1:
            accumulator = self.accumulators[path]
            array = np.asarray(accumulator.numpy(), dtype=summed_as(accumulator))  # a copy
            # Positions that share a weight need its sum each, in one replica: all ranks get it.
            root = self._updated_by.get(path) if len(self.owners[path]) == 1 else None
            self._sums[path] = self._transport.sum(f"the sum of {path}", communicator, array, root)


def owners_of(stages: Sequence[Stage], rank_of: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns the positions that have each trained weight, by its path."""
    owners: dict[str, set[int]] = {}
    for stage, position in zip(stages, rank_of, strict=True):
        for variable in stage.model.trainable_variables:
            owners.setdefault(variable.path, set()).add(position)
    return {path: tuple(sorted(positions)) for path, positions in owners.items()}
