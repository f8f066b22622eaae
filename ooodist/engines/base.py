"""The interface of all engines: sums over all ranks in a traced graph, and exchanges of arrays.

An engine only sums, scatters, gathers or broadcasts. The order of exchanges, how many are in
flight, and what shares an exchange are decided by its callers.
"""

from __future__ import annotations

import re
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from ooodist.compat.tensorflow_graph import run_independently
from ooodist.engines import kinds
from ooodist.engines.arrays import ArrayExchange
from ooodist.engines.kinds import Kind
from ooodist.util.digest import hex_digest
from ooodist.util.patience import moved

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator

# Arrays travel in pieces of these numbers of elements, because a name keeps its size forever.
PIECE_SIZES = (1 << 8, 1 << 14, 1 << 20)


# The dtypes as which libraries that cannot sum small integers carry them.
SMALL_INTEGERS = {
    tf.uint8: tf.int32,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}


class Scattered(NamedTuple):
    """What a reduce-scatter has given a rank.

    Attributes:
        total: the sum of its row.
        done: the op that completes when the exchange does.
        begun: the op whose result the engine sends: the exchange starts right after it.
    """

    total: tf.Tensor
    done: tf.Operation
    begun: tf.Operation


class Engine(ArrayExchange):
    """The processes of one job, and a way to sum over them.

    Attributes:
        name: that of its kind (:mod:`ooodist.engines.kinds`).
        local_rank, local_size: this process among those of its host; local_size None: unknown.
        max_credit: how many exchanges may be in flight at a time; None: any number.
        wires: the 16-bit dtypes that the library can sum.
        wire_dtypes: dtypes that the library cannot sum, or only with loss, and the dtypes as which
            they travel.
        partition_bytes: size of the pieces into which the library itself splits exchanges; None:
            it does not split them.
        pieces_in_flight: how many of these pieces are in flight at most; None: any number.
        names_cost_memory: whether each name costs memory until the job ends; a name may then stand
            for tensors of any shape (``any_shape``).
        world: the same ranks, for code that exchanges more than the engine does; None: the kind
            runs no pipelines.
    """

    name: str
    local_rank: int = 0
    local_size: int | None = 1
    max_credit: int | None = None
    wires: tuple[str, ...] = ("float16", "bfloat16")
    wire_dtypes: dict[tf.DType, tf.DType] = {}  # noqa: RUF012
    partition_bytes: int | None = None
    pieces_in_flight: int | None = None
    names_cost_memory: bool = False
    world: Communicator | None = None

    def __init__(self) -> None:
        self._exchanges: dict[str, tuple[tf.DType, tf.TensorShape]] = {}
        # Names of ops rather than ops, which would keep their graph alive.
        self._last_op: weakref.WeakKeyDictionary[tf.Graph, dict[str, str]]
        self._last_op = weakref.WeakKeyDictionary()
        self._eager: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {}
        self._is_shut_down = False

    @property
    def kind(self) -> Kind:
        """What is known of such engines."""
        return kinds.find(self.name)

    @property
    def credits(self) -> tuple[int, ...]:
        """The numbers of exchanges in flight that a plan may choose."""
        most = self.max_credit
        return tuple(each for each in self.kind.credits if most is None or each <= most)

    @abstractmethod
    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        """Adds the op that sums ``tensor`` over all ranks to the graph being traced.

        Never called with one rank, with an empty tensor or with a dtype of ``wire_dtypes``. The
        key consists of letters, digits, dots and underscores. The op must run even if its input is
        constant or its result unused, and must not be merged with another: other ranks count on it.
        """

    def _gather(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        """Adds the op that joins the ranks' tensors along the first axis, in the order of ranks.

        As for :meth:`_sum`; only called if the kind ``gathers``.
        """
        raise AssertionError(f"engine {self.name} has no all-gather")

    def _broadcast(self, tensor: tf.Tensor, key: str, root: int) -> tf.Tensor:
        """Adds the op that gives all ranks the tensor of rank ``root``.

        As for :meth:`_sum`, of any dtype of 16, 32 or 64 bits but bfloat16; only called if the kind
        ``broadcasts``. Other ranks give a tensor of the same shape and dtype, which does not count.
        """
        raise AssertionError(f"engine {self.name} has no broadcast")

    def _scatter(self, rows: tf.Tensor, key: str) -> Scattered:
        """Adds the op that sums the ranks' matrices, and gives each rank its row of the sum.

        As for :meth:`_sum`; only called if the kind ``scatters``.
        """
        raise AssertionError(f"engine {self.name} has no reduce-scatter")

    @abstractmethod
    def _close(self) -> None:
        """Leaves the job, after the last exchange of all ranks."""

    def sum_in_graph(
        self,
        tensor: tf.Tensor,
        name: str,
        position: int | None = None,
        *,
        any_shape: bool = False,
        as_it_is: bool = False,
    ) -> tf.Tensor:
        """The sum of ``tensor`` over all ranks, of the same shape and dtype.

        Called while a tf.function is traced, or eagerly. The exchange starts when ``tensor`` and
        the ops of surrounding ``tf.control_dependencies`` are computed, and is complete when the
        returned tensor is.

        Args:
            tensor: dense, of the same shape and dtype on all ranks. An empty tensor is returned
                as it is.
            name: the exchange's key, equal on all ranks. A name may be used several times in one
                graph: these exchanges run one after the other, in the order of the calls.
            position: priority: of the exchanges that it has been given, the engine sends the one
                with the smallest position first, if it can (BytePS); None: before all of these.
            any_shape: whether the name stands for tensors of any shape, one after the other.
            as_it_is: whether it travels in its own dtype, one of ``wires``, even if sums are then
                rounded.

        Raises:
            RuntimeError: the name had another shape or dtype before.
        """
        if tf.executing_eagerly():
            # Engines know an exchange by the name of its op, which only a graph can give.
            traced = self._eager.setdefault(
                name,
                tf.function(
                    lambda tensor: self.sum_in_graph(
                        tensor, name, position, any_shape=any_shape, as_it_is=as_it_is
                    ),
                    autograph=False,
                ),
            )
            return traced(tensor)
        key = self._register(name, tensor.dtype, None if any_shape else tensor.shape)
        if self.size == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        wide = tensor.dtype if as_it_is else self.wire_dtypes.get(tensor.dtype, tensor.dtype)
        with self._after_others_of(key) as last_op:
            travelling = tf.cast(tensor, wide)
            result = tf.cast(self._sum(travelling, key, position), tensor.dtype)
            last_op[key] = result.op.name
        return result

    def scatter_in_graph(self, rows: tf.Tensor, name: str, *, as_it_is: bool = False) -> Scattered:
        """Sums a matrix over all ranks, of which each gets its row: a reduce-scatter.

        Called while a tf.function is traced, with several ranks, if the kind ``scatters``. It
        starts and ends as :meth:`sum_in_graph` does. Engines may add in another order than there.

        Args:
            rows: of the same shape (size, n) and dtype on all ranks.
            name: as for :meth:`sum_in_graph`; a sum of this name would be another exchange.
            as_it_is: as for :meth:`sum_in_graph`.

        Returns:
            the sum of this rank's row, of shape (n,) and the same dtype.

        Raises:
            RuntimeError: the name had another shape or dtype before.
        """
        key = self._register(f"scatter.{name}", rows.dtype, rows.shape)
        wide = rows.dtype if as_it_is else self.wire_dtypes.get(rows.dtype, rows.dtype)
        with self._after_others_of(key) as last_op:
            scattered = self._scatter(tf.cast(rows, wide), key)
            last_op[key] = scattered.done.name
        return scattered._replace(total=tf.cast(scattered.total, rows.dtype))

    def gather_in_graph(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The tensors of all ranks, bit for bit, joined along the first axis by rank.

        Called while a tf.function is traced, if the kind ``gathers``. It starts and ends as
        :meth:`sum_in_graph` does.

        Args:
            tensor: float32 of a known shape (n, ...), the same on all ranks and not empty.
            name: as for :meth:`sum_in_graph`; a sum of this name would be another exchange.

        Returns:
            a tensor of shape (size * n, ...); the op that made it is the exchange.

        Raises:
            RuntimeError: the name had another shape or dtype before.
        """
        key = self._register(f"gather.{name}", tensor.dtype, tensor.shape)
        if self.size == 1:
            return tf.identity(tensor)
        with self._after_others_of(key) as last_op:
            result = self._gather(tensor, key)
            last_op[key] = result.op.name
        result.set_shape([self.size * tensor.shape[0], *tensor.shape[1:]])
        return result

    def broadcast_in_graph(self, tensor: tf.Tensor, name: str, root: int) -> tf.Tensor:
        """The tensor of rank ``root`` on all ranks, bit for bit.

        Called while a tf.function is traced, if the kind ``broadcasts``. It starts and ends as
        :meth:`sum_in_graph` does.

        Args:
            tensor: a float tensor of a known shape, the same on all ranks. Only the value on
                ``root`` counts.
            name: as for :meth:`sum_in_graph`; a sum of this name would be another exchange.
            root: the same on all ranks.

        Raises:
            RuntimeError: the name had another shape or dtype before.
        """
        key = self._register(f"broadcast.{name}", tensor.dtype, tensor.shape)
        if self.size == 1 or tensor.shape.num_elements() == 0:
            return tf.identity(tensor)
        travels_as = tf.float16 if tensor.dtype == tf.bfloat16 else tensor.dtype  # bit for bit
        with self._after_others_of(key) as last_op:
            result = self._broadcast(tf.bitcast(tensor, travels_as), key, root)
            last_op[key] = result.op.name
        return tf.bitcast(result, tensor.dtype)

    @contextmanager
    def _after_others_of(self, key: str) -> Iterator[dict[str, str]]:
        """Makes ops of this block wait for the graph's last exchange with this key, if any.

        Yields the graph's last op by key, in which the block sets its own.
        """
        graph = tf.compat.v1.get_default_graph()
        last_op = self._last_op.setdefault(graph, {})
        earlier = [graph.get_operation_by_name(last_op[key])] if key in last_op else []
        with tf.control_dependencies(earlier):
            yield last_op

    def exchanges(self) -> list[str]:
        """All exchanges so far, in the order of first use, as "name dtype shape".

        Ranks that differ here would sum different tensors: compare it with ``check_equal``.
        """
        return [f"{name} {dtype.name} {shape}" for name, (dtype, shape) in self._exchanges.items()]

    def shutdown(self) -> None:
        """Ends the job cleanly: waits for all ranks, then leaves. The second call does nothing.

        After an error use ``ooodist.engines.abort``, because the other ranks would not come.
        """
        if not self._is_shut_down:
            self._is_shut_down = True
            self.barrier()
            self._close()

    def _register(self, name: str, dtype: tf.DType, shape: tf.TensorShape | None) -> str:
        """Registers the exchange and returns its key, which is unique and valid as an op name."""
        kind = (dtype, tf.TensorShape(shape))
        known = self._exchanges.setdefault(name, kind)
        if str(known) != str(kind):
            raise RuntimeError(
                f"exchange {name!r} is of {kind[0].name} {kind[1]}, but was of {known[0].name} "
                f"{known[1]} before: a name has one dtype and shape"
            )
        letters = re.sub(r"[^A-Za-z0-9_.]", "_", name)
        if letters == name:
            return f"exchange.{name}"
        return f"exchange.{letters}.{hex_digest(name, 8)}"

    def _sum_array(self, array: np.ndarray) -> np.ndarray:
        if self.size == 1:
            return array
        result = np.empty_like(array)
        start = 0
        while start < array.size:
            left = array[start : start + PIECE_SIZES[-1]].size
            size = next(size for size in PIECE_SIZES if size >= left)
            piece = np.zeros(size, array.dtype)
            piece[:left] = array[start : start + left]
            summed = self.sum_in_graph(tf.constant(piece), f"ooodist.{array.dtype}.{size}")
            result[start : start + left] = summed.numpy()[:left]
            moved()
            start += left
        return result


def keep(op: tf.Operation) -> None:
    """Makes ``op`` run in each call of the traced function, used or not, independent of other ops.

    Otherwise stateless ops with unused results are pruned, and stateful ops wait for each other.

    Raises RuntimeError outside of a tf.function.
    """
    if not run_independently(op):
        raise RuntimeError(f"{op.name}: exchanges can only be part of a tf.function")


def as_new_value(tensor: tf.Tensor) -> tf.Tensor:
    """Hides from TensorFlow whether a tensor is constant or equal to another; the value stays.

    Otherwise a stateless op on a constant is executed only once, while the graph is optimized, and
    two such ops on one tensor are merged. The one thing that all optimizers leave alone is a branch
    chosen at run time, by a stateful op; it copies nothing. That op may neither tell the time nor
    draw a number: TensorFlow refuses to run such ops where it is to be deterministic.
    """
    with tf.device("CPU:0"):  # decisions are made on the host
        chosen = tf.raw_ops.Empty(shape=[], dtype=tf.bool, init=True)  # false, but not statically
    keep(chosen.op)
    return tf.raw_ops.Switch(data=tensor, pred=chosen).output_false
