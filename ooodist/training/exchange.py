"""The exchange of gradients inside a traced step: order, credit, buckets and the mean.

Exchanges are issued in the order in which they are given. With a credit of c at most c are in
flight: exchange i starts when exchange i - c is complete. The window reaches across the steps of
a launch. With c = 2::

    gradient ready   0   1   2   3
    exchange         |--0--||--2--|
                         |--1--||--3--|

An engine adds up; everything else is here, so that all engines behave alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ooodist.backprop.graph import num_bytes
from ooodist.backprop.units import Gradient
from ooodist.engines.base import Engine
from ooodist.errors import UserError

DEFAULT_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Exchanged:
    """One exchange of a traced step.

    Attributes:
        name: the same on every rank.
        weights: names of the weights whose gradients it carries.
        num_bytes: bytes that each rank contributes.
        op: the op whose completion is the exchange's completion.
    """

    name: str
    weights: tuple[str, ...]
    num_bytes: int
    op: tf.Operation = field(repr=False)


class GradientExchange:
    """Averages gradients over all ranks.

    Args:
        engine: adds tensors up.
        credit: how many exchanges may be in flight; None for as many as there are.
        bucket_bytes: gradients that follow each other and have one dtype travel together up to
            this size (bytes); 0 sends each alone. Fewer, larger exchanges save latency.

    Raises:
        UserError: credit or bucket_bytes is impossible with this engine.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        credit: int | None = None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> None:
        if credit is not None and credit < 1:
            raise UserError(f"exchange.credit is {credit}; it must be at least 1, or null")
        if bucket_bytes < 0:
            raise UserError(f"exchange.bucket_bytes is {bucket_bytes}; it must be at least 0")
        limit = engine.max_credit
        if credit is not None and limit is not None and credit > limit:
            raise UserError(
                f"exchange.credit is {credit}, but the engine {engine.name} runs at most {limit} "
                f"exchange at a time; set it to {limit} or null"
            )
        self.engine = engine
        self.credit = credit
        self.bucket_bytes = bucket_bytes

    def mean(
        self, gradients: Sequence[Gradient], names: Sequence[str]
    ) -> tuple[list[Gradient], list[Exchanged]]:
        """The mean over all ranks of each gradient, exchanged in the given order.

        Args:
            gradients: of any shape; None stays None. IndexedSlices become dense, because ranks
                see different rows.
            names: a unique name for each.

        Returns:
            the means, in the same places, and what was exchanged (nothing with one rank).
        """
        if self.engine.size == 1:
            return list(gradients), []
        result: list[Gradient] = list(gradients)
        dense = {
            index: tf.convert_to_tensor(gradient)
            for index, gradient in enumerate(gradients)
            if gradient is not None
        }
        records = []
        for bucket in self._buckets(dense):
            label = names[bucket[0]] + (f"+{len(bucket) - 1}" if len(bucket) > 1 else "")
            tensors = [dense[index] for index in bucket]
            means, record = self._exchange(tensors, label, tuple(names[i] for i in bucket))
            for index, mean in zip(bucket, means, strict=True):
                result[index] = mean
            if record:
                records.append(record)
        return result, records

    def _buckets(self, tensors: dict[int, tf.Tensor]) -> list[list[int]]:
        buckets: list[list[int]] = []
        room = 0
        for index, tensor in tensors.items():
            size = num_bytes(tensor)
            same = bool(buckets) and tensors[buckets[-1][-1]].dtype == tensor.dtype
            if same and 0 < size <= room:  # a size of 0 is an open shape: it travels alone
                buckets[-1].append(index)
                room -= size
            else:
                buckets.append([index])
                room = self.bucket_bytes - size if size else 0
        return buckets

    def _exchange(
        self, tensors: list[tf.Tensor], label: str, weights: tuple[str, ...]
    ) -> tuple[list[tf.Tensor], Exchanged | None]:
        whole = tensors[0]
        if len(tensors) > 1:
            whole = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        # Another model of this process may have weights of the same names and other sizes.
        key = f"{label}.{whole.dtype.name}.{whole.shape.num_elements()}"
        if tf.executing_eagerly():
            total, record = self.engine.sum_in_graph(whole, key), None
        else:
            earlier = self._issued(whole.graph)
            if self.credit is not None and len(earlier) >= self.credit:
                with tf.control_dependencies([earlier[-self.credit].op]):
                    whole = tf.identity(whole)
            total = self.engine.sum_in_graph(whole, key)
            record = Exchanged(label, weights, num_bytes(whole), total.op)
            earlier.append(record)
        mean = total / tf.cast(self.engine.size, total.dtype)
        if len(tensors) == 1:
            return [mean], record
        parts = tf.split(mean, [tensor.shape.num_elements() for tensor in tensors])
        pairs = zip(parts, tensors, strict=True)
        return [tf.reshape(part, tensor.shape) for part, tensor in pairs], record

    def _issued(self, graph: tf.Graph) -> list[Exchanged]:
        """What was issued in this graph so far. Kept with the graph, so that it dies with it."""
        key = f"ooodist/exchanges/{id(self)}"
        issued: list[Exchanged] = graph.get_collection_ref(key)
        issued[:] = [record for record in issued if record.op.graph is graph]
        return issued
