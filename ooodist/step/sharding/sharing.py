"""New weights, of which each rank has updated a part, on all ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.graph.units import Gradient
from ooodist.planner.data_parallel.named import BUCKET_BYTES
from ooodist.step.sending.chunks import flatten, unflatten
from ooodist.step.sharding.grouping import divide
from ooodist.step.sharding.slices import Slicing
from ooodist.step.sharding.state import size_of

# Engines hold several copies of what they send and receive: a large weight goes in pieces, of which
# a few are under way at a time.
PIECE_BYTES, IN_FLIGHT = 4 << 20, 4


class Sharing:
    """How ranks share weights.

    Args:
        engine: connects the ranks.
        weights: by name.
        slices: of weights of which each rank updates a slice, by name.
        rank_of: the rank that updates each of the others, by name.
    """

    def __init__(
        self,
        engine: Engine,
        weights: Mapping[str, keras.Variable],
        slices: Mapping[str, Slicing],
        rank_of: Mapping[str, int],
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._slices = slices
        self._rank_of = rank_of

    def share(
        self,
        updated: Collection[str],
        arrived: Mapping[str, Gradient],
        groups: Iterable[Sequence[str]],
    ) -> None:
        """Gives all ranks the new values of weights, in a step that is traced.

        Args:
            updated: the names of the weights.
            arrived: by the name of a weight, the sum or mean of its gradient: before it is there,
                no rank makes room for a new value.
            groups: names of weights whose gradients arrive together.
        """
        names = dict.fromkeys(name for name in self._weights if name in updated)
        for group in dict.fromkeys(map(tuple, groups)):
            together = [name for name in group if name in names and name in self._slices]
            for name in together:
                names.pop(name)
            if together:
                self._gather_slices(together)
        for bucket in self._buckets(names):
            if bucket[0] in self._slices:
                self._gather_slices(bucket)
            else:
                self._broadcast_weights(bucket, arrived)

    def _gather_slices(self, names: Sequence[str]) -> None:
        """Gives all ranks the slices of weights that the others have updated."""
        slices = [self._slices[name] for name in names]
        weights = [self._weights[name].value for name in names]
        rank = self._engine.rank
        own = flatten([w[s.at(rank)] for w, s in zip(weights, slices, strict=True)])
        key = f"weights/{names[0]}.{len(names)}.{own.shape.num_elements()}"
        rows = tf.reshape(self._engine.gather_in_graph(own, key), [self._engine.size, -1])
        parts = tf.split(rows, [each.size for each in slices], axis=1)
        for weight, slicing, part in zip(weights, slices, parts, strict=True):
            weight.assign(slicing.whole(part), read_value=False)

    def _broadcast_weights(self, names: Sequence[str], arrived: Mapping[str, Gradient]) -> None:
        """Gives all ranks new weights of the rank that has updated them."""
        root, weights = self._rank_of[names[0]], [self._weights[name] for name in names]
        gradients = [g for g in map(arrived.get, names) if g is not None]
        with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
            whole = flatten([weight.value for weight in weights])
            name = f"weights/{names[0]}.{whole.dtype.name}.{whole.shape.num_elements()}"
            new = self._broadcast(whole, name, root)
        if root == self._engine.rank:
            return
        values = unflatten(new, [weight.shape for weight in weights])
        for weight, value in zip(weights, values, strict=True):
            weight.value.assign(value, read_value=False)

    def _broadcast(self, whole: tf.Tensor, name: str, root: int) -> tf.Tensor:
        """The flat tensor of a rank on all ranks, sent in pieces."""
        count, most = whole.shape.num_elements(), PIECE_BYTES // whole.dtype.size
        if count <= most:
            return self._engine.broadcast_in_graph(whole, name, root)
        pieces: list[tf.Tensor] = []
        for begin in range(0, count, most):
            piece = tf.slice(whole, [begin], [min(most, count - begin)])
            with tf.control_dependencies(pieces[-IN_FLIGHT : 1 - IN_FLIGHT]):
                at = f"{name}.{begin}"
                pieces.append(self._engine.broadcast_in_graph(piece, at, root))
        return tf.concat(pieces, 0)

    def _buckets(self, names: Iterable[str]) -> list[list[str]]:
        """Weights of one rank and dtype, or with slices, together up to the size of a bucket."""

        def kind(name: str) -> tuple[int, str]:
            owner = -1 if name in self._slices else self._rank_of[name]
            return owner, self._weights[name].dtype

        return divide(names, kind, lambda name: size_of(self._weights[name]), BUCKET_BYTES)
