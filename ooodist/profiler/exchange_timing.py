"""Timing exchanges inside traced functions, on the path that training takes.

All ranks call the same methods with the same arguments. Clocks are read in the graph, behind an
exchange that all ranks wait for, so that neither the call nor a rank that comes late counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import tensorflow as tf

from ooodist.compat.tensorflow_runtime import is_deterministic
from ooodist.engines.base import Engine
from ooodist.step.exchange import GradientExchange

ITEM_BYTES = 4  # gradients are float32


class ExchangeTimer:
    """Times exchanges of gradients over all ranks of an engine, of which it has at least two.

    Args:
        engine: whose exchanges are timed.
        credit: how many of them are in flight at a time; None: all that there are.

    Attributes:
        on_gpu: whether steps are computed on a GPU, and not on the cores that exchanges take.
    """

    def __init__(self, engine: Engine, credit: int | None) -> None:
        self._engine = engine
        self._credit = credit
        self._traced: dict[tuple[int, ...], Callable[..., tuple[tf.Tensor, tf.Tensor, Any]]] = {}
        self.on_gpu = bool(tf.config.get_visible_devices("GPU"))
        # A product takes some 30 ms on a core, and misses what an exchange drives from the caches.
        self._matrix = tf.eye(8192 if self.on_gpu else 1024)
        self._join = tf.function(lambda *parts: tf.concat(parts, axis=0), autograph=False)

    def one_by_one(self, num_bytes: int, count: int, products: int = 0) -> float:
        """Seconds from the first start to the last end, each starting when the last is complete.

        With ``products``, a chain of so many matrix products is computed beside them.
        """
        return self._seconds(num_bytes, count, 1, products)[0]

    def together(self, num_bytes: int, count: int, products: int = 0) -> float:
        """Seconds from the start of the first to the last end, as many in flight as may be."""
        return self._seconds(num_bytes, count, self._credit, products)[0]

    def beside_products(self, products: int, num_bytes: int, count: int) -> float:
        """Seconds of a chain of matrix products, with such exchanges and their means beside it."""
        return self._seconds(num_bytes, count, self._credit, products)[1]

    def beside_calls(
        self, call: Callable[[], object], calls: int, num_bytes: int, count: int
    ) -> float:
        """Seconds of so many calls, one after the other, with such exchanges beside them."""
        if count:  # not while the calls are timed
            self._prepared(num_bytes, count, self._credit, 0)
        self._engine.barrier()
        with ThreadPoolExecutor(1) as pool:
            began = time.perf_counter()
            exchanging = pool.submit(self.together, num_bytes, count) if count else None
            for _ in range(calls):
                call()
            seconds = time.perf_counter() - began
            if exchanging is not None:
                exchanging.result()
        return seconds

    def processing(self, num_bytes: int, count: int) -> float:
        """Seconds that the cores work for such exchanges in this process, with nothing beside."""
        spent = []
        for number in (0, count):
            self._prepared(num_bytes, number, self._credit, 0)
            began = time.process_time()
            self._seconds(num_bytes, number, self._credit, 0)
            spent.append(time.process_time() - began)
        return max(0.0, spent[1] - spent[0])

    def copying(self, num_bytes: int) -> float:
        """Seconds of joining two gradients of so many bytes together."""
        halves = [tf.zeros([num_bytes // ITEM_BYTES // 2]) for _ in range(2)]
        self._join(*halves)
        began = time.perf_counter()
        _on_host(self._join(*halves)).numpy()
        return time.perf_counter() - began

    def _seconds(
        self, num_bytes: int, count: int, credit: int | None, products: int
    ) -> tuple[float, float]:
        """To the end of the exchanges, and to the end of all."""
        exchanged, complete, _ = self._prepared(num_bytes, count, credit, products)()
        return float(exchanged), float(complete)

    def _prepared(
        self, num_bytes: int, count: int, credit: int | None, products: int
    ) -> Callable[[], tuple[tf.Tensor, tf.Tensor, Any]]:
        """What :meth:`_seconds` runs, traced and run once before."""
        key = (num_bytes, count, credit or 0, products)
        tensors = tf.zeros([num_bytes // ITEM_BYTES]), self._matrix
        if key not in self._traced:
            function = tf.function(
                lambda gradient, matrix: self._trace(gradient, matrix, count, credit, products),
                autograph=False,
            )
            self._traced[key] = function.get_concrete_function(*tensors)
            self._traced[key](*tensors)  # libraries get to know the exchanges
        return partial(self._traced[key], *tensors)

    def _trace(
        self,
        gradient: tf.Tensor,
        matrix: tf.Tensor,
        count: int,
        credit: int | None,
        products: int,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        exchange = GradientExchange(self._engine, credit=credit, bucket_bytes=0)
        all_here = self._engine.sum_in_graph(tf.zeros([1]), "profile.begin")
        with tf.control_dependencies([_on_host(all_here)]):
            began = _now()
        with tf.control_dependencies([began]):
            gradient, product = tf.identity(gradient), tf.identity(matrix)
        exchanges, ends = [], []
        for index in range(count):
            # With a credit of 1 one name will do: it saves the engine memory.
            name = f"profile.{0 if credit == 1 else index}"
            means, (done,) = exchange.mean([gradient], [name])
            exchanges.append(_on_host(done.op.outputs[0]))
            ends.append(_on_host(means[0]))
        for _ in range(products):
            product = tf.matmul(product, matrix)
        ends.append(_on_host(product))
        with tf.control_dependencies(exchanges):
            exchanged = _now() - began
        with tf.control_dependencies(ends):
            complete = _now() - began
        return exchanged, complete, ends  # what nobody gets would not be computed


def _on_host(tensor: tf.Tensor) -> tf.Tensor:
    """A value that the host has when the tensor is computed."""
    with tf.device("CPU:0"):
        return tf.identity(tf.reshape(tensor, [-1])[0])


def _now() -> tf.Tensor:
    """Seconds of a clock, read when the ops are done that this one waits for."""
    if is_deterministic():  # TensorFlow's own op refuses to run
        return tf.numpy_function(time.time, [], tf.float64)
    return tf.timestamp()
