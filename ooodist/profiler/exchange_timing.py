"""Times exchanges inside traced functions, on the same path as training.

All ranks call the same methods with the same arguments. Clocks are read in the graph, after an
exchange that all ranks wait for, so that neither call overhead nor a late rank counts.
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
MOST_TRACED = 8  # exchanges of a function that runs beside calls: each takes 10 ms to trace


class ExchangeTimer:
    """Times exchanges of gradients over all ranks of an engine, which must have at least two.

    Args:
        engine: the engine whose exchanges are timed.
        credit: how many exchanges are in flight at a time; None: all of them.

    Attributes:
        on_gpu: whether steps are computed on a GPU rather than on the cores that exchanges use.
    """

    def __init__(self, engine: Engine, credit: int | None) -> None:
        self._engine = engine
        self._credit = credit
        self._traced: dict[tuple[int, ...], Callable[..., tuple[tf.Tensor, tf.Tensor, Any]]] = {}
        self.on_gpu = bool(tf.config.get_visible_devices("GPU"))
        # A product takes some 30 ms on a core, and notices what an exchange evicts from the caches.
        self._matrix = tf.eye(8192 if self.on_gpu else 1024)
        self._join = tf.function(lambda *parts: tf.concat(parts, axis=0), autograph=False)

    def one_by_one(self, num_bytes: int, count: int, products: int = 0) -> float:
        """The seconds of ``count`` exchanges, each starting when the last is complete.

        They are of ``num_bytes`` bytes each. Meanwhile a chain of ``products`` matrix products is
        computed.
        """
        return self._seconds(num_bytes, count, 1, products)[0]

    def in_flight(self, num_bytes: int, count: int, products: int = 0) -> float:
        """The seconds of ``count`` exchanges with up to ``credit`` in flight at a time."""
        return self._seconds(num_bytes, count, self._credit, products)[0]

    def beside_products(self, products: int, num_bytes: int, count: int) -> float:
        """The seconds of a chain of matrix products with such exchanges beside it."""
        return self._seconds(num_bytes, count, self._credit, products)[1]

    def beside_calls(
        self, call: Callable[[], object], calls: int, num_bytes: int, count: int
    ) -> float:
        """The seconds of ``calls`` successive calls with such exchanges beside them.

        It, and :meth:`processing`, run more than MOST_TRACED of them as several functions.
        """
        for number in _bursts(count):  # traced now, not while the calls are timed
            self._prepared(num_bytes, number, self._credit, 0)
        self._engine.barrier()
        with ThreadPoolExecutor(1) as pool:
            began = time.perf_counter()
            exchanging = pool.submit(self._in_bursts, num_bytes, count) if count else None
            for _ in range(calls):
                call()
            seconds = time.perf_counter() - began
            if exchanging is not None:
                exchanging.result()
        return seconds

    def processing(self, num_bytes: int, count: int) -> float:
        """The CPU seconds that this process spends on such exchanges and nothing else."""
        spent = []
        for bursts in ([0] * len(_bursts(count)), _bursts(count)):
            for number in bursts:
                self._prepared(num_bytes, number, self._credit, 0)
            began = time.process_time()
            for number in bursts:
                self._seconds(num_bytes, number, self._credit, 0)
            spent.append(time.process_time() - began)
        return max(0.0, spent[1] - spent[0])

    def copying(self, num_bytes: int) -> float:
        """The seconds to concatenate two gradients of ``num_bytes`` bytes in total."""
        halves = [tf.zeros([num_bytes // ITEM_BYTES // 2]) for _ in range(2)]
        self._join(*halves)
        began = time.perf_counter()
        _on_host(self._join(*halves)).numpy()
        return time.perf_counter() - began

    def _in_bursts(self, num_bytes: int, count: int) -> None:
        for number in _bursts(count):
            self.in_flight(num_bytes, number)

    def _seconds(
        self, num_bytes: int, count: int, credit: int | None, products: int
    ) -> tuple[float, float]:
        """The seconds until the exchanges end, and until products and means end too."""
        exchanged, complete, _ = self._prepared(num_bytes, count, credit, products)()
        return float(exchanged), float(complete)

    def _prepared(
        self, num_bytes: int, count: int, credit: int | None, products: int
    ) -> Callable[[], tuple[tf.Tensor, tf.Tensor, Any]]:
        """The function that :meth:`_seconds` runs, traced and run once already."""
        key = (num_bytes, count, credit or 0, products)
        tensors = tf.zeros([num_bytes // ITEM_BYTES]), self._matrix
        if key not in self._traced:
            function = tf.function(
                lambda gradient, matrix: self._trace(gradient, matrix, count, credit, products),
                autograph=False,
            )
            self._traced[key] = function.get_concrete_function(*tensors)
            self._traced[key](*tensors)  # the libraries register the exchanges
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
            # With a credit of 1 a single name suffices, which saves the engine memory.
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
        return exchanged, complete, ends  # results that are not returned would not be computed


def _bursts(count: int) -> list[int]:
    """How many exchanges each of the functions has."""
    full, rest = divmod(count, MOST_TRACED)
    return [MOST_TRACED] * full + [rest] * (rest > 0)


def _on_host(tensor: tf.Tensor) -> tf.Tensor:
    """One element, which reaches the host once the tensor is computed."""
    with tf.device("CPU:0"):
        return tf.identity(tf.reshape(tensor, [-1])[0])


def _now() -> tf.Tensor:
    """The clock in seconds (float64), read once the op's control inputs are done."""
    if is_deterministic():  # tf.timestamp would refuse to run
        return tf.numpy_function(time.time, [], tf.float64)
    return tf.timestamp()
