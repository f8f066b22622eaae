"""Ranks that are threads of the test, where a job of processes would mostly import TensorFlow.

They exchange arrays, and tensors of a traced step one at a time. One rank runs at a time, until it
waits for the others: what is replaced while a step is traced is replaced for the whole process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import tensorflow as tf

from ooodist import engines
from ooodist.engines import kinds
from ooodist.engines.base import Engine, keep

T = TypeVar("T")
SECONDS = 60  # until ranks that wait for others fail


class Meeting:
    """Where ranks bring arrays, and get their sum."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.brought: dict[int, np.ndarray] = {}
        self.turn = threading.Lock()

    def sum(self, rank: int, array: np.ndarray) -> np.ndarray:
        self.brought[rank] = array
        self.turn.release()
        try:
            self.barrier.wait()
            total = sum(self.brought[each] for each in range(self.size))
            self.barrier.wait()  # nobody brings the next one before all have this one
        finally:
            self.turn.acquire()
        return np.asarray(total, array.dtype)


class ThreadEngine(Engine):
    """One of the ranks."""

    name = "threads"
    kind = kinds.find("collective")
    max_credit = 1

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__()
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting
        self._last_of: weakref.WeakKeyDictionary[tf.Graph, str] = weakref.WeakKeyDictionary()

    def _sum_array(self, array: np.ndarray) -> np.ndarray:
        return self._meeting.sum(self.rank, array)

    def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
        def total(value: np.ndarray) -> np.ndarray:
            return self._meeting.sum(self.rank, value)

        graph = tf.compat.v1.get_default_graph()
        before = self._last_of.get(graph)
        with tf.control_dependencies([graph.get_operation_by_name(before)] if before else []):
            result = tf.numpy_function(total, [tensor], tensor.dtype)
        self._last_of[graph] = result.op.name
        keep(result.op)
        result.set_shape(tensor.shape)
        return result

    def _close(self) -> None:
        pass


def on_ranks(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Engine], T], size: int = 2
) -> list[T | Exception]:
    """Returns what each rank's work returns or raises; ``engines.current()`` is its engine."""
    own = threading.local()
    monkeypatch.setattr(engines, "current", lambda: own.engine)
    meeting = Meeting(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        own.engine = ThreadEngine(rank, meeting)
        with meeting.turn:
            try:
                results[rank] = work(own.engine)
            except Exception as error:
                results[rank] = error
                threading.Timer(1, meeting.barrier.abort).start()  # others may be in the last one

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
