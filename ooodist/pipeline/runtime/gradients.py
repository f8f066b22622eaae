"""Sums the gradients of a rank's stages over micro-batches, stages and replicas.

::

    last W of a bucket --> sum over its owners (peers in other pipelines; other stages that share
    the weight) --> update

MPI sums them, and not an engine of data parallelism (Horovod, TensorFlow's collectives): each of
those has one group of ranks, all of them, and MPI is there for the stages' messages anyway.

With a sharded optimizer, only the replica that updates the weight gets the sum (sharding.py).

A weight that stages of several ranks share (tied embeddings) is kept by all of them. Each gets the
sum of all gradients and makes the same update, so that the copies stay identical.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import keras
import tensorflow as tf
from mpi4py import MPI

from ooodist.pipeline.layers.state import size_of, summed_as
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.buckets import Bucket, by_layer, divide
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.pipeline.stages import Stage
from ooodist.planner.pipeline.costs import bucket_bytes
from ooodist.planner.pipeline.simulate import Exchange


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
        buckets: ``variables``, as they are summed.
        communicators: those that this object has made and this rank is in.
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
        users: dict[str, tuple[int, ...]] = {}
        for stage, position in zip(stages, rank_of, strict=True):
            if position == ranks.position:
                for variable in stage.model.trainable_variables:
                    own.setdefault(variable.path, variable)
                    users[variable.path] = (*users.get(variable.path, ()), stage.number)
        self.own = own
        self.variables = list(own.values())
        self._users = users  # this rank's stages that have the weight
        # In the same order on all ranks, as MPI requires.
        groups = sorted({self.owners[path] for path in self.owners})
        communicators = {group: ranks.those_at(group) for group in groups}
        self._those = {path: communicators[self.owners[path]] for path in own}
        self.communicators = [each for each in communicators.values() if each != MPI.COMM_NULL]
        self._left: dict[str, int] = {}
        self._sums: dict[int, Message] = {}  # by index of the bucket
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
        shared = sorted(  # in the same order on all ranks
            (v for v in self.variables if len(self.owners[v.path]) > 1), key=lambda v: v.path
        )
        alone = [v for v in self.variables if len(self.owners[v.path]) == 1]
        stages = {self._users[v.path] for v in alone}
        self.buckets = [
            Bucket(tuple(group), self._updated_by.get(group[0].path))
            for users in sorted(stages)
            for group in self._groups([v for v in alone if self._users[v.path] == users])
        ]
        # Positions that share a weight need its sum each, in one replica: all ranks get it.
        self.buckets += [Bucket((variable,)) for variable in shared]
        self._bucket_of = {
            v.path: index for index, bucket in enumerate(self.buckets) for v in bucket.variables
        }
        # One call for all: a call for each sum takes longer than the update of a small model.
        self._read_all = tf.function(self._read, autograph=False)
        self._clear_all = tf.function(self._clear, autograph=False)

    def updates(self, path: str) -> bool:
        """Whether this rank's replica updates this weight."""
        return self._updated_by.get(path) in (None, self._replica)

    def begin(self) -> None:
        """Begins a step."""
        self._left = {path: len(users) for path, users in self._users.items()}
        self._sums.clear()

    def divided(self, variables: Sequence[keras.Variable]) -> list[list[keras.Variable]]:
        """Divides the trained weights of a stage into parts whose W's may be computed one after
        the other, because their sums begin then; empty if it is of no use.

        Weights that stages of other ranks share are in the first one. A stage is not divided that
        shares a weight with another one of this rank: both add to one accumulator, in an order
        which would change.
        """
        if self._replicas == 1 or any(len(self._users[v.path]) > 1 for v in variables):
            return []
        shared = [v for v in variables if len(self.owners[v.path]) > 1]
        alone = [v for v in variables if len(self.owners[v.path]) == 1]
        first, *others = self._groups(alone) or [[]]
        return [[*first, *shared], *others] if others else []

    def _groups(self, variables: Sequence[keras.Variable]) -> list[list[keras.Variable]]:
        """Divides weights that the same stages of this rank use, and no other rank's."""
        groups = divide(
            by_layer(variables),
            lambda layer: (summed_as(layer[0]), self._updated_by.get(layer[0].path)),
            lambda layer: sum(map(size_of, layer)),
            bucket_bytes(sum(map(size_of, variables))),
        )
        return [[variable for layer in group for variable in layer] for group in groups]

    def are_done(self, variables: Iterable[keras.Variable]) -> None:
        """Called when all micro-batches of a stage have added to these; starts complete sums."""
        done: list[int] = []
        for variable in variables:
            self._left[variable.path] -= 1
            # Ranks with other stages finish a shared weight in another order: its sum starts last.
            if not self._left[variable.path] and len(self.owners[variable.path]) == 1:
                done.append(self._bucket_of[variable.path])
        for index in dict.fromkeys(done):
            if not any(self._left[each.path] for each in self.buckets[index].variables):
                self._begin_sum(index)

    def begun_by(
        self, variables: Mapping[int, Sequence[keras.Variable]]
    ) -> dict[int, list[Bucket]]:
        """Returns, for each stage of this rank, the buckets whose sums begin when it is done.

        Args:
            variables: the trained variables of each stage, by number.
        """
        begun: dict[int, list[Bucket]] = {}
        seen: set[int] = set()
        for number in sorted(variables):  # the first stage is the last to be done
            paths = [v.path for v in variables[number] if len(self.owners[v.path]) == 1]
            own = dict.fromkeys(self._bucket_of[path] for path in paths)
            begun[number] = [self.buckets[index] for index in own if index not in seen]
            seen.update(own)
        return begun

    def wait_for_begun(self) -> None:
        """Returns when all sums that have begun are complete. Raises Stalled."""
        for message in self._sums.values():
            self._transport.wait(message)

    def exchanges(self, since: float) -> list[Exchange]:
        """Returns when the sums of the last step ran, each by itself, in the order of their ends.

        A sum that several stages of this rank need is shown at the first of them.

        Args:
            since: the time from which they are counted, as ``time.perf_counter()``.
        """
        found = [
            Exchange(
                self._users[self.buckets[index].variables[0].path][0],
                message.began - since,
                message.ended - since,
            )
            for index, message in self._sums.items()
        ]
        return sorted(found, key=lambda each: each.end)

    def sums(self) -> list[tf.Tensor]:
        """Returns the gradients of ``updated``: sums over stages and replicas.

        Raises:
            Stalled: another rank does not take part in time.
        """
        for index, bucket in enumerate(self.buckets):
            if len(self.owners[bucket.variables[0].path]) > 1:
                self._begin_sum(index)
        self.wait_for_begun()
        totals = {
            str(index): self.buckets[index].as_tensor(message.arrays[0])
            for index, message in self._sums.items()
            if self.buckets[index].root in (None, self._replica)
        }
        return list(self._read_all(totals))

    def _read(self, totals: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients: these totals, by bucket, and the others' sums."""
        found: dict[str, tf.Tensor] = {}
        for index, bucket in enumerate(self.buckets):
            if str(index) in totals:
                unpacked = bucket.unpack(totals[str(index)])
                found |= {
                    v.path: total for v, total in zip(bucket.variables, unpacked, strict=True)
                }
        return [
            found[v.path] if v.path in found else self.accumulators[v.path].read_value()
            for v in self.updated
        ]

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

    def _begin_sum(self, index: int) -> None:
        paths = [variable.path for variable in self.buckets[index].variables]
        communicator = self._those[paths[0]]
        if communicator.size > 1:
            bucket = self.buckets[index]
            flat = bucket.pack([self.accumulators[path].value() for path in paths])
            what = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
            name = f"the sum of {what}"
            self._sums[index] = self._transport.sum(name, communicator, flat, bucket.root)


def owners_of(stages: Sequence[Stage], rank_of: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns the positions that have each trained weight, by its path."""
    owners: dict[str, set[int]] = {}
    for stage, position in zip(stages, rank_of, strict=True):
        for variable in stage.model.trainable_variables:
            owners.setdefault(variable.path, set()).add(position)
    return {path: tuple(sorted(positions)) for path, positions in owners.items()}
