"""An engine as a package might add it: rank 0 adds up what the others send it, in Python."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener

import numpy as np

from ooodist.engines.kinds import Kind
from ooodist.engines.kinds.kind import Launched

VARIABLE, OWN = "STAR_ADDRESSES", "STAR_RANK"
KEY = b"of a test"


class Star(Kind):
    name = "star"
    engine = f"{__name__}:StarEngine"
    credits = (1,)

    def launched(self, environ: Mapping[str, str]) -> Launched | None:
        if VARIABLE not in environ:
            return None
        size = len(environ[VARIABLE].split(","))
        return Launched(size, f"{VARIABLE} of {size}", on_purpose=True)

    def variables(self, addresses: Sequence[str], rank: int) -> dict[str, str]:
        return {VARIABLE: ",".join(addresses), OWN: str(rank)}

    def trips(self, hosts: int, servers: int | None) -> int:
        return 2


def __getattr__(name: str) -> object:
    """The engine itself needs TensorFlow, which launchers and planner do without."""
    if name != "StarEngine":
        raise AttributeError(name)
    import tensorflow as tf

    from ooodist.engines.base import Engine, keep

    class StarEngine(Engine):
        name = "star"
        max_credit = 1  # an exchange holds a thread

        def __init__(self) -> None:
            super().__init__()
            addresses = os.environ[VARIABLE].split(",")
            self.rank, self.size = int(os.environ[OWN]), len(addresses)
            self.local_rank, self.local_size = self.rank, self.size
            host, _, port = addresses[0].rpartition(":")
            center = (host, int(port))
            if self.rank == 0:
                with Listener(center, authkey=KEY) as listener:
                    self._others = [listener.accept() for _ in addresses[1:]]
            else:
                self._others = [_patient_client(center)]
            self._received = [collections.defaultdict(queue.Queue) for _ in self._others]
            for other, received in zip(self._others, self._received, strict=True):
                threading.Thread(target=_receive, args=(other, received), daemon=True).start()

        def _sum(self, tensor: tf.Tensor, key: str, position: int | None) -> tf.Tensor:
            def exchange(array: np.ndarray) -> np.ndarray:
                if self.rank:
                    self._send(key, array)
                    return self._sent(0, key, array)
                total = array.copy()
                for other in range(len(self._others)):
                    total += self._sent(other, key, array)
                self._send(key, total)
                return total

            result = tf.numpy_function(exchange, [tensor], tensor.dtype, name=key)
            result.set_shape(tensor.shape)
            keep(result.op)
            return result

        def _send(self, key: str, array: np.ndarray) -> None:
            for other in self._others:
                other.send_bytes(key.encode() + b"\0" + array.tobytes())

        def _sent(self, other: int, key: str, like: np.ndarray) -> np.ndarray:
            data = self._received[other][key].get()
            return np.frombuffer(data, like.dtype).reshape(like.shape)

        def _close(self) -> None:
            for other in self._others:
                other.close()

    return StarEngine


def _receive(other: Connection, received: dict[str, queue.Queue[bytes]]) -> None:
    with contextlib.suppress(EOFError, OSError):  # it has left
        while True:
            key, _, data = other.recv_bytes().partition(b"\0")
            received[key.decode()].put(data)


def _patient_client(address: tuple[str, int]) -> Connection:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return Client(address, authkey=KEY)
        time.sleep(0.05)
