"""The exchange of gradients inside a traced step: order, credit, buckets, chunks and the mean.

What is exchanged, and in which order, is a list of
:class:`ooodist.planner.data_parallel.plan.PlannedExchange`: that of a plan, or the gradients in the
order in which they become ready, small ones in buckets.

In sequence, with a credit of c, exchange i starts when its gradients are ready, exchange i - 1 has
started and exchange i - c is complete. This window spans the steps of a launch. With c = 2::

    gradient ready   0   1   2   3
    exchange         |--0--||--2--|
                         |--1--||--3--|

By urgency, each exchange is handed over when it is ready, and the engine (BytePS) first sends the
one that is listed first.

Where the optimizer is sharded, a rank gets the sums of its slices alone (``sharding/slices.py``).

An engine only sums, scatters and gathers; everything else is here and in
:mod:`ooodist.step.sending`, so that all engines behave alike. What is sent of a gradient may be
narrower than it (``wire``), and buckets and chunks are made of that. Which gradients travel as
rows, and what these are, is in ``rows``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.graph.ops import num_bytes
from ooodist.graph.units import Gradient
from ooodist.planner.costs import StepCosts, WeightCost
from ooodist.planner.data_parallel.exchanges import arrange
from ooodist.planner.data_parallel.named import BUCKET_BYTES
from ooodist.planner.data_parallel.plan import (
    ALIGNMENT,
    Plan,
    PlannedExchange,
    check_exchanges,
)
from ooodist.planner.rows import KIND
from ooodist.step.sending.chunks import flatten, join, split, unflatten
from ooodist.step.sending.low_rank import Begun, LowRank, Sent
from ooodist.step.sending.names import ExchangeNames
from ooodist.step.sending.rows import RowGradients, add_up, pack, sum_equal_rows
from ooodist.step.sending.summed import Exchanged, Summed, handing_over
from ooodist.step.sending.wire import ErrorFeedback, Wire
from ooodist.step.sharding.slices import Slicing


class GradientExchange:
    """Averages gradients over all ranks.

    Args:
        engine: sums tensors over the ranks.
        credit: how many exchanges may be in flight; None for as many as there are.
        bucket_bytes: consecutive gradients of one dtype travel together up to this size (bytes); 0
            sends each alone. Fewer, larger exchanges save latency.
        plan: the exchanges and their order, instead of ``credit`` and ``bucket_bytes``.
        sum_rows: with one rank, too, merge equal rows of IndexedSlices, so that the optimizer sees
            what it would see with several ranks (see :func:`sum_equal_rows`).
        wire: the 16-bit dtype in which gradients travel; None: their own. A plan has its own.
        feedback: keeps what gradients lose in 16 bits; None: it is lost.
        rows: decides which gradients travel as rows; None: all are dense.
        low_rank: makes thin matrices of gradients; None: they travel whole.
        slices: of weights of which this rank needs the mean of its slice alone, by name. It gets
            the others' too where a weight without slices shares the exchange, and in low rank.

    Attributes:
        thin: what this rank has sent first of the gradients of the last :meth:`mean` that travel in
            low rank, by weight. It is not finite if the gradient is not.

    Raises:
        UserError: credit, bucket_bytes, wire or the plan is impossible with this engine.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        credit: int | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        plan: Plan | None = None,
        sum_rows: bool = True,
        wire: str | None = None,
        feedback: ErrorFeedback | None = None,
        rows: RowGradients | None = None,
        low_rank: LowRank | None = None,
        slices: Mapping[str, Slicing] = MappingProxyType({}),
    ) -> None:
        if plan is not None:
            check_exchanges(plan)
            # Else they would travel whole, without a word.
            assert low_rank is not None or not plan.low_rank or engine.size == 1
            wire = plan.wire
            credit = None if plan.by_urgency else plan.credit
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
        self.plan = plan
        self.sum_rows = sum_rows
        self.wire = wire
        self.feedback = feedback
        self._wire = None if wire is None else Wire(engine, wire, feedback)
        self.rows = rows
        self.low_rank = low_rank
        self.slices = slices
        self.thin: dict[str, tf.Tensor] = {}
        self._names = ExchangeNames(engine.names_cost_memory)

    def mean(
        self,
        gradients: Sequence[Gradient],
        names: Sequence[str],
        carried: Collection[str] = (),
    ) -> tuple[list[Gradient], list[Exchanged]]:
        """Averages each gradient over all ranks, exchanged in the planned or the given order.

        Args:
            gradients: tensors of any shape; None stays None. IndexedSlices become dense, because
                ranks see different rows; they travel as rows where these are fewer.
            names: a unique name for each gradient.
            carried: names of gradients that stay this rank's own: dense, and as they will be sent.
                Of these, only chunks that the plan does not carry are exchanged.

        Returns:
            the means, in the same places, and the exchanges (none with one rank). Of a gradient
            that was scattered, it is that of this rank's slice.

        Raises:
            UserError: the plan is not for these gradients.
        """
        if self.engine.size == 1:
            return [sum_equal_rows(g) if self.sum_rows else g for g in gradients], []
        given = {
            name: gradient
            for name, gradient in zip(names, gradients, strict=True)
            if gradient is not None
        }
        as_rows = self._rows_of(given)
        tensors: dict[str, Sent] = {
            name: gradient if name in as_rows else tf.convert_to_tensor(gradient)
            for name, gradient in given.items()
        }
        begun = self._begun(tensors)
        self.thin = thin = {name: each.left for name, each in begun.items()}
        sent = {n: thin[n] if n in thin else self._sent(n, t) for n, t in tensors.items()}
        sizes = {name: num_bytes(tensor) for name, tensor in sent.items()}
        exchanges = self._exchanges(sent)
        sums = self._sums(sent, exchanges, sizes, carried=False if carried else None)
        complete = [each for each in sums if each.exchange.weights[0] not in carried]
        means = {**sent, **self.means(complete, {**tensors, **thin}, are_means=thin)}
        if self.low_rank is not None and begun:
            halfway = {n: self.low_rank.go_on(each, means[n]) for n, each in begun.items()}
            own = {name: each.own for name, each in halfway.items()}
            if self.plan is None:
                self.low_rank.log(tensors, [*sent.values(), *own.values()], len(own))
                exchanges = self._buckets(own)
            second = [exchange for exchange in exchanges if exchange.weights[0] in own]
            sizes = {name: num_bytes(tensor) for name, tensor in own.items()}
            found = self._sums(own, second, sizes, are_second=True)
            sums += found
            right = self.means(found, own, are_means=own)
            means.update({n: self.low_rank.end(each, right[n]) for n, each in halfway.items()})
        records = [each.record for each in sums if each.record is not None]
        return [means.get(name) for name in names], records

    def _begun(self, gradients: Mapping[str, Sent]) -> dict[str, Begun]:
        """What is sent first of the gradients that travel in low rank."""
        if self.low_rank is None or not self.low_rank.is_on:
            return {}
        if self.plan is None:
            ranks = {name: self.low_rank.rank_of(each) for name, each in gradients.items()}
        else:
            ranks = {name: group.rank for group in self.plan.low_rank for name in group.weights}
        return {
            name: self.low_rank.begin(name, gradients[name], rank)
            for name, rank in ranks.items()
            if rank is not None
        }

    def sent_dtype(self, weight: str, dtype: tf.DType) -> tf.DType:
        """The dtype in which a weight's gradient, which has ``dtype``, is sent."""
        return self._wire.dtype if self._wire and self._is_narrow(weight, dtype) else dtype

    def _is_narrow(self, weight: str, dtype: tf.DType) -> bool:
        """Whether a weight's gradient, if dense, is sent in the 16 bits of the wire."""
        if self._wire is None or not self._wire.takes(dtype):
            return False
        return self.plan is None or weight in self.plan.narrow

    def _sent(self, weight: str, gradient: Sent) -> Sent:
        """What is sent of a gradient; rows are sent as they are."""
        if isinstance(gradient, tf.IndexedSlices) or self._wire is None:
            return gradient
        if not self._is_narrow(weight, gradient.dtype):
            return gradient
        return self._wire.sent(weight, gradient)

    def _rows_of(self, gradients: Mapping[str, Gradient]) -> Collection[str]:
        """The names of the gradients that travel as rows."""
        if self.rows is None or tf.executing_eagerly():
            return ()
        if self.plan is None:
            return self.rows.choose(gradients, None)
        alone = {e.weights[0] for e in self.plan.exchanges if len(e.weights) == e.parts == 1}
        thin = {name for group in self.plan.low_rank for name in group.weights}
        return self.rows.choose(gradients, alone - {*self.plan.carried, *self.plan.narrow, *thin})

    def sums_of_carried(
        self, gradients: Mapping[str, tf.Tensor], num_bytes_of: Mapping[str, int]
    ) -> list[Summed]:
        """Exchanges gradients that another call has left, in the planned order.

        Args:
            gradients: what that call's :meth:`mean` has returned, by the names of their weights.
            num_bytes_of: the bytes that are sent for each weight of the plan, by name.

        Returns:
            the sums, for :meth:`means`.
        """
        assert self.plan is not None  # nothing else says what is carried
        return self._sums(gradients, self.plan.exchanges, num_bytes_of, carried=True)

    def _sums(
        self,
        tensors: Mapping[str, Sent],
        exchanges: Sequence[PlannedExchange],
        num_bytes_of: Mapping[str, int],
        *,
        carried: bool | None = None,
        are_second: bool = False,
    ) -> list[Summed]:
        """Sums these tensors, which are those of some of the exchanges, over all ranks.

        Of the exchanges, only those are made that are carried or are not, if ``carried`` says so.

        Those in low rank are exchanged twice; the second exchange waits for no other.
        """
        pieces: dict[str, list[tf.Tensor]] = {}
        sums = []
        for exchange, name, position in self._named(exchanges, num_bytes_of, are_second):
            first = exchange.weights[0]
            if first not in tensors or carried not in (None, exchange.carried):
                continue
            if isinstance(tensors[first], tf.IndexedSlices):
                sums.append(self._exchange_rows(tensors[first], exchange, name))
                continue
            own = [tensors[weight] for weight in exchange.weights]
            scattered = not are_second and self.scatters(exchange)
            if exchange.parts > 1:
                if first not in pieces:
                    whole = self.slices[first].rows(own[0]) if scattered else own[0]
                    pieces[first] = split(whole, exchange, columns=scattered)
                own = [pieces[first][exchange.part]]
            elif scattered:
                own = [
                    self.slices[weight].rows(gradient)
                    for weight, gradient in zip(exchange.weights, own, strict=True)
                ]
            sums.append(
                self._exchange(
                    own, exchange, name, position, waits=not are_second, scattered=scattered
                )
            )
        return sums

    def scatters(self, exchange: PlannedExchange) -> bool:
        """Whether each rank gets the sums of its slices alone: all weights have slices, and dense
        gradients that travel as they are."""
        if not self.slices or tf.executing_eagerly():
            return False
        if any(name not in self.slices or name in self.thin for name in exchange.weights):
            return False
        size = self.slices[exchange.weights[0]].size
        return exchange.parts == 1 or exchange.parts <= size // ALIGNMENT

    def nothing_of(self, chunk: PlannedExchange, gradient: tf.Tensor) -> tf.Tensor:
        """Zeros of the shape of the sum of a chunk of this gradient."""
        if self.scatters(chunk):
            gradient = tf.zeros([self.slices[chunk.weights[0]].size], gradient.dtype)
        return split(tf.zeros_like(gradient), chunk)[chunk.part]

    def means(
        self,
        sums: Sequence[Summed],
        tensors: Mapping[str, Sent | tf.TensorSpec],
        are_means: Collection[str] = (),
    ) -> dict[str, tf.Tensor]:
        """The means of the gradients of which these are the sums, by weight.

        Args:
            sums: of all exchanges of these weights.
            tensors: the gradients, for their shapes and dtypes.
            are_means: names of weights of which the sums are the means, besides those of the wire.
        """
        arrived: dict[str, dict[int, tf.Tensor]] = {}
        of_slices = {name for each in sums if each.is_scattered for name in each.exchange.weights}

        def shape(name: str) -> Sequence[int]:
            return self.slices[name].slice_shape if name in of_slices else tensors[name].shape

        for exchange, total, *_ in sums:
            mean, weights, first = total, exchange.weights, tensors[exchange.weights[0]]
            as_rows = isinstance(first, tf.IndexedSlices)
            is_mean = weights[0] in are_means or self._is_narrow(weights[0], first.dtype)
            if as_rows or not is_mean:
                mean = total / tf.cast(self.engine.size, total.dtype)
            if len(weights) == 1:
                arrived.setdefault(weights[0], {})[exchange.part] = mean
                continue
            parts = unflatten(mean, [shape(weight) for weight in weights])
            arrived |= {weight: {0: part} for weight, part in zip(weights, parts, strict=True)}
        whole = {
            name: parts[0]
            if len(parts) == 1 and name not in of_slices
            else join([parts[part] for part in range(len(parts))], shape(name))
            for name, parts in arrived.items()
        }
        return {name: tf.cast(mean, tensors[name].dtype) for name, mean in whole.items()}

    def _exchanges(self, tensors: Mapping[str, Sent]) -> Sequence[PlannedExchange]:
        if self.plan is None:
            return self._buckets(tensors)
        planned = {weight for exchange in self.plan.exchanges for weight in exchange.weights}
        if planned != set(tensors):
            unknown, missing = sorted(planned - set(tensors)), sorted(set(tensors) - planned)
            raise UserError(
                f"the plan exchanges {unknown or 'nothing'} that this step does not train, and "
                f"leaves out {missing or 'nothing'} that it does; make a plan for this model with "
                "python -m ooodist.plan"
            )
        return self.plan.exchanges

    def _buckets(self, tensors: Mapping[str, Sent]) -> Sequence[PlannedExchange]:
        weights = []
        for name, tensor in tensors.items():
            dtype, size = tensor.dtype.name, num_bytes(tensor)
            if isinstance(tensor, tf.IndexedSlices) or not size:  # its shape is unknown: alone
                dtype = f"{KIND}{name}"
            weights.append(WeightCost(name, size, dtype))
        costs = StepCosts((), (), tuple(weights))
        return arrange(costs, tensors, bucket_bytes=self.bucket_bytes)

    def _named(
        self,
        exchanges: Sequence[PlannedExchange],
        num_bytes_of: Mapping[str, int],
        are_second: bool = False,
    ) -> Iterator[tuple[PlannedExchange, str, int]]:
        """Yields each exchange with the name that the engine gets and its place in the order."""
        own = [f"{exchange.name}{'.second' * are_second}" for exchange in exchanges]
        sizes = [
            sum(num_bytes_of[weight] for weight in exchange.weights) // exchange.parts
            for exchange in exchanges
        ]
        names = self._names.name_all(own, sizes)
        return zip(exchanges, names, itertools.count(self._names.first_place(own)), strict=False)

    def _exchange(
        self,
        tensors: list[tf.Tensor],
        exchange: PlannedExchange,
        name: str,
        position: int,
        *,
        waits: bool,
        scattered: bool,
    ) -> Summed:
        if len(tensors) == 1:
            whole = tensors[0]
        else:
            whole = tf.concat(tensors, 1) if scattered else flatten(tensors)
        any_shape = self._names.are_numbers
        # Another model of this process may have weights of the same names and other sizes.
        name += f".{whole.dtype.name}" + ("" if any_shape else f".{whole.shape.num_elements()}")
        as_it_is = self._is_narrow(exchange.weights[0], whole.dtype)
        options = {"any_shape": any_shape, "as_it_is": as_it_is}
        engine = self.engine
        if tf.executing_eagerly():
            return Summed(exchange, engine.sum_in_graph(whole, name, position, **options), None)
        graph = whole.graph
        if waits:
            whole = self._after_earlier_exchanges(whole)
        if scattered:
            total, op, begun = engine.scatter_in_graph(whole, name, as_it_is=as_it_is)
        else:
            total = engine.sum_in_graph(whole, name, position, **options)
            op, begun = total.op, handing_over(total)
        record = Exchanged(exchange.name, exchange.weights, num_bytes(whole), op, total)
        if waits:
            self._issued(graph).append((begun, record))
        return Summed(exchange, total, record, scattered)

    def _exchange_rows(
        self, gradient: tf.IndexedSlices, exchange: PlannedExchange, name: str
    ) -> Summed:
        """Exchanges the rows of a gradient; the sum is dense."""
        packed = self._after_earlier_exchanges(pack(gradient))
        rows, columns = packed.shape
        gathered = self.engine.gather_in_graph(packed, f"{name}.{rows}.{columns}")
        total = add_up(gathered, self.engine.size, gradient.shape)
        num_sent = num_bytes(packed)
        record = Exchanged(exchange.name, exchange.weights, num_sent, gathered.op, total)
        self._issued(packed.graph).append((handing_over(gathered), record))
        return Summed(exchange, total, record)

    def _after_earlier_exchanges(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor, delayed until its exchange may start."""
        if self.plan is not None and self.plan.by_urgency:
            return tensor
        issued = self._issued(tensor.graph)
        waits: list[tf.Operation] = []
        if self.credit is not None and len(issued) >= self.credit:
            waits.append(issued[-self.credit][1].op)
        in_sequence = self.plan is not None or self.credit is not None
        if in_sequence and issued and self.credit != 1:
            waits.append(issued[-1][0])  # it has started; with a credit of 1 it is complete
        if not waits:
            return tensor
        with tf.control_dependencies(waits):
            return tf.identity(tensor)

    def _issued(self, graph: tf.Graph) -> list[tuple[tf.Operation, Exchanged]]:
        """What was issued in this graph so far: (op that starts the exchange, record).

        The list is kept in the graph, so that it dies with it.
        """
        key = f"ooodist/exchanges/{id(self)}"
        issued: list[tuple[tf.Operation, Exchanged]] = graph.get_collection_ref(key)
        issued[:] = [pair for pair in issued if pair[0].graph is graph]
        return issued
