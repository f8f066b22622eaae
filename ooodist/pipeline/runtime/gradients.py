"""Sums the gradients of a rank's stages over micro-batches, stages and replicas.

::

    last W of a bucket --> sum over its owners (peers in other pipelines; other stages that share
    the weight) --> update

An engine of data parallelism (Horovod, TensorFlow's collectives) sums over all ranks, inside of a
traced step. Here some ranks sum, and a sum begins between two actions of the schedule, which no
traced function contains. So a transport sums NumPy arrays; how weights are divided into buckets,
and among the replicas that update them, is the same for both (`ooodist.step.sharding`).

With a sharded optimizer, only the replica that updates the weight gets the sum (sharding.py).

A weight that stages of several ranks share (tied embeddings) is kept by all of them. Each gets the
sum of all gradients and makes the same update, so that the copies stay identical.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.buckets import Bucket, by_layer
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.pipeline.stages import Stage
from ooodist.planner.pipeline.costs import bucket_bytes
from ooodist.planner.pipeline.simulate import Exchange
from ooodist.step.sharding.grouping import divide
from ooodist.step.sharding.state import size_of, summed_as


class Gradients:
    """The gradient sums of the weights that this rank trains.

    Args:
        stages: all stages of the model.
        rank_of: the position of each stage.
        ranks: the position of this rank among all; all ranks make this object together.
        transport: moves the sums.
        updated_by: the only replica that updates a weight, by its name; all update the others.

    Attributes:
        accumulators: by name of the weight; stages add to them.
        owners: the positions that have each weight of the model, by name.
        own: all weights of this rank that can be trained, by name.
        variables: those of them that are trained, in the order of the model, by name.
        updated: those of ``variables`` that this rank updates, by name.
        buckets: ``variables``, as they are summed.
        communicators: those that this object has made, for weights at several positions.
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
                    name = stage.name_of(variable)
                    own.setdefault(name, variable)
                    users[name] = (*users.get(name, ()), stage.number)
        self.own = own
        self._names = {id(variable): name for name, variable in own.items()}
        self.variables = own
        self._users = users  # this rank's stages that have the weight
        # In the same order on all ranks, as MPI requires.
        groups = sorted({group for group in self.owners.values() if len(group) > 1})
        those = {group: ranks.those_at(group) for group in groups}
        self._those = {name: those.get(self.owners[name], ranks.peers) for name in own}
        self.communicators = list(those.values())
        self._left: dict[str, int] = {}
        self._sums: dict[Bucket, Message] = {}
        self._zero = tf.zeros([])
        self.select(None)

    def select(self, weights: Collection[str] | None) -> None:
        """Sums only these weights from now on. All ranks pass the same ones.

        Args:
            weights: names; None for all.
        """
        trained = {n: v for n, v in self.own.items() if weights is None or n in weights}
        self.variables = trained
        self.updated = {name: each for name, each in trained.items() if self.updates(name)}
        alone = [name for name in trained if not self._is_shared(name)]
        shared = sorted(trained.keys() - alone)  # in the same order on all ranks
        self.buckets = [
            Bucket({self._name_of(each): each for each in group}, self._root_of(group[0]))
            for users in sorted({self._users[name] for name in alone})
            for group in self._groups([trained[n] for n in alone if self._users[n] == users])
        ]
        # Positions that share a weight need its sum each, in one replica: all ranks get it.
        self.buckets += [Bucket({name: trained[name]}) for name in shared]
        self._bucket_of = {name: bucket for bucket in self.buckets for name in bucket.weights}
        # One call for all: a call for each sum takes longer than the update of a small model.
        self._read_all = tf.function(self._read, autograph=False)
        self._clear_all = tf.function(self._clear, autograph=False)

    def updates(self, name: str) -> bool:
        """Whether this rank's replica updates this weight."""
        return self._updated_by.get(name) in (None, self._replica)

    def begin(self) -> None:
        """Begins a step."""
        self._left = {name: len(users) for name, users in self._users.items()}
        self._sums.clear()

    def divided(self, variables: Sequence[keras.Variable]) -> list[list[keras.Variable]]:
        """Divides the trained weights of a stage into parts whose W's may be computed one after
        the other, because their sums begin then; empty if it is of no use.

        Weights that stages of other ranks share are in the first one. A stage is not divided that
        shares a weight with another one of this rank: both add to one accumulator, in an order
        which would change.
        """
        names = [self._name_of(variable) for variable in variables]
        if self._replicas == 1 or any(len(self._users[name]) > 1 for name in names):
            return []
        shared = [self.own[name] for name in names if self._is_shared(name)]
        alone = [self.own[name] for name in names if not self._is_shared(name)]
        first, *others = self._groups(alone) or [[]]
        return [[*first, *shared], *others] if others else []

    def _groups(self, variables: Sequence[keras.Variable]) -> list[list[keras.Variable]]:
        """Divides weights that the same stages of this rank use, and no other rank's."""
        groups = divide(
            by_layer(variables),
            lambda layer: (summed_as(layer[0]), self._root_of(layer[0])),
            lambda layer: sum(map(size_of, layer)),
            bucket_bytes(sum(map(size_of, variables))),
        )
        return [[variable for layer in group for variable in layer] for group in groups]

    def are_done(self, variables: Iterable[keras.Variable]) -> None:
        """Called when all micro-batches of a stage have added to these; starts complete sums."""
        done: list[Bucket] = []
        for name in map(self._name_of, variables):
            self._left[name] -= 1
            # Ranks with other stages finish a shared weight in another order: its sum starts last.
            if not self._left[name] and not self._is_shared(name):
                done.append(self._bucket_of[name])
        for bucket in dict.fromkeys(done):
            if not any(self._left[name] for name in bucket.weights):
                self._begin_sum(bucket)

    def begun_by(
        self, variables: Mapping[int, Sequence[keras.Variable]]
    ) -> dict[int, list[Bucket]]:
        """Finds, for each stage of this rank, the buckets whose sums begin when it is done.

        Args:
            variables: the trained variables of each stage, by number.
        """
        begun: dict[int, list[Bucket]] = {}
        seen: set[Bucket] = set()
        for number in sorted(variables):  # the first stage is the last to be done
            names = map(self._name_of, variables[number])
            own = dict.fromkeys(self._bucket_of[n] for n in names if not self._is_shared(n))
            begun[number] = [bucket for bucket in own if bucket not in seen]
            seen.update(own)
        return begun

    def wait_for_begun(self) -> None:
        """Waits until all sums that have begun are complete. Raises Stalled."""
        for message in self._sums.values():
            self._transport.wait(message)

    def exchanges(self, since: float) -> list[Exchange]:
        """Tells when the sums of the last step ran, each by itself, in the order of their ends.

        A sum that several stages of this rank need is shown at the first of them.

        Args:
            since: the time from which they are counted, as ``time.perf_counter()``.
        """
        found = [
            Exchange(self._users[bucket.first][0], message.began - since, message.ended - since)
            for bucket, message in self._sums.items()
        ]
        return sorted(found, key=lambda each: each.end)

    def sums(self) -> list[tf.Tensor]:
        """The gradients of ``updated``: sums over stages and replicas.

        Raises:
            Stalled: another rank does not take part in time.
        """
        for bucket in self.buckets:
            if self._is_shared(bucket.first):
                self._begin_sum(bucket)
        self.wait_for_begun()
        totals = {
            bucket.first: bucket.as_tensor(message.arrays[0])
            for bucket, message in self._sums.items()
            if bucket.root in (None, self._replica)
        }
        return list(self._read_all(totals))

    def _read(self, totals: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """The gradients: these totals, by the first weight of a bucket, and the others' sums."""
        found: dict[str, tf.Tensor] = {}
        for first, total in totals.items():
            bucket = self._bucket_of[first]
            found |= zip(bucket.weights, bucket.unpack(total), strict=True)
        return [
            found[name] if name in found else self.accumulators[name].read_value()
            for name in self.updated
        ]

    def clear(self) -> None:
        """Sets the accumulators to zero."""
        self._clear_all(self._zero)

    def _clear(self, zero: tf.Tensor) -> None:
        # The zero is an argument: TensorFlow would keep constant zeros beside the sums. And one
        # after the other, or all zeros would exist beside the sums for a moment.
        done: list[tf.Operation] = []
        for name in self.variables:
            accumulator = self.accumulators[name]
            with tf.control_dependencies(done):
                zeros = tf.fill(accumulator.shape, tf.cast(zero, accumulator.dtype))
                done = [accumulator.assign(zeros, read_value=False)]

    def _begin_sum(self, bucket: Bucket) -> None:
        communicator = self._those[bucket.first]
        if communicator.size > 1:
            names = list(bucket.weights)
            flat = bucket.pack([self.accumulators[name].value() for name in names])
            what = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            shown = f"the sum of {what}"
            self._sums[bucket] = self._transport.sum(shown, communicator, flat, bucket.root)

    def _root_of(self, variable: keras.Variable) -> int | None:
        """The only replica that updates a weight; None: all do."""
        return self._updated_by.get(self._name_of(variable))

    def _name_of(self, variable: keras.Variable) -> str:
        return self._names[id(variable)]

    def _is_shared(self, name: str) -> bool:
        """Whether several positions have this weight."""
        return len(self.owners[name]) > 1


def owners_of(stages: Sequence[Stage], rank_of: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The positions that have each trained weight, by its name."""
    owners: dict[str, set[int]] = {}
    for stage, position in zip(stages, rank_of, strict=True):
        for variable in stage.model.trainable_variables:
            owners.setdefault(stage.name_of(variable), set()).add(position)
    return {name: tuple(sorted(positions)) for name, positions in owners.items()}
