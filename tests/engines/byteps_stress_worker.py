"""One worker of the BytePS stress test: ``byteps_stress_worker.py EXCHANGES``.

Several lanes (threads) exchange at the same time, each over tensors of its own, one after the
other. A lane that has a result goes on at once or after a random pause, which differs between
workers: so one worker is ahead of another by up to a whole exchange, tensor by tensor. One lane
declares a new tensor for every second exchange, so that the servers' tables grow meanwhile; another
one has a single name for tensors of all sizes.

All values are integers below 2**24, which float32 adds exactly: every element of every sum is
compared for equality. Prints ``exchanges N wrong 0`` and ends with code 0, or says which were
wrong and ends with code 1.
"""

import os
import random
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed

import byteps.tensorflow as bps
import numpy as np
import tensorflow as tf
from byteps.tensorflow.ops import _push_pull

PARTITION = 4_096_000 // 4  # elements of one chunk on its way (BYTEPS_PARTITION_BYTES)
LANES = {
    "tiny": [1, 2, 3],
    "small": [257, 1_023, 1_024, 5_000],
    "medium": [100_003, 65_536],
    "edge": [PARTITION - 1, PARTITION, PARTITION + 1],
    "large": [2 * PARTITION + 1],
}
# Larger and smaller ones in turn, with more chunks and fewer.
SIZES_OF_ONE_NAME = [7, 65_536, 1, PARTITION + 5, 1_000, 2 * PARTITION, PARTITION, 3]
# Of all exchanges; the rest goes to new tensors.
SHARES = {"tiny": 0.35, "small": 0.3, "medium": 0.1, "edge": 0.02, "large": 0.01, "sizes": 0.02}
NEW_TENSOR_SIZES = [1, 1_000, 20_000]


class Lane:
    """Exchanges one after the other, over tensors of its own."""

    def __init__(self, name: str, sizes: list[int], num_exchanges: int) -> None:
        # One exchange a tensor and turn; the order of the tensors is the same on all workers.
        self.name = name
        self.wrong: list[str] = []
        self.done = 0
        names = [self._name_of(index) for index in range(len(sizes))]
        self._exchanges = [_declare(name, size) for name, size in zip(names, sizes, strict=True)]
        self._sizes = sizes
        self._num_exchanges = num_exchanges
        # Its own pauses on every worker, the same in every run.
        self._random = random.Random(f"{name} of worker {bps.rank()}")

    def run(self) -> None:
        """Does all exchanges of the lane and compares their sums."""
        for number in range(self._num_exchanges):
            index = self._tensor_of(number)
            size = self._sizes[index]
            total = self._exchanges[index](_values(size, number, bps.rank())).numpy()
            expected = sum(_values(size, number, rank) for rank in range(bps.size()))
            if not np.array_equal(total, expected):
                count = np.count_nonzero(total != expected)
                self.wrong.append(f"{self.name} exchange {number}: {count} of {size} elements")
            self.done += 1
            self._pause(number)

    def _name_of(self, index: int) -> str:
        return f"{self.name}_{index}"

    def _tensor_of(self, number: int) -> int:
        return number % len(self._sizes)

    def _pause(self, number: int) -> None:
        # Each worker is the slow one for a while.
        if number // 25 % bps.size() == bps.rank() and self._random.random() < 0.5:
            time.sleep(self._random.uniform(0, 0.004))


class NewTensorsLane(Lane):
    """Uses every tensor for two exchanges only."""

    def _tensor_of(self, number: int) -> int:
        return number // 2


class OneNameLane(Lane):
    """Has one name for all its tensors."""

    def _name_of(self, index: int) -> str:
        return self.name


def _declare(name: str, size: int) -> tf.types.experimental.ConcreteFunction:
    """The exchange of one tensor. All workers must declare all tensors in the same order."""

    @tf.function(input_signature=[tf.TensorSpec([size], tf.float32)])
    def exchange(values: tf.Tensor) -> tf.Tensor:
        return _push_pull(values, "", name)

    return exchange.get_concrete_function()


def _values(size: int, number: int, rank: int) -> np.ndarray:
    """What a worker gives to an exchange: shape (size,), small integers, different every time."""
    return (np.arange(size, dtype=np.float32) % 251) + np.float32((rank + 1) * (number % 1000))


def main() -> int:
    """Runs all lanes at once."""
    bps.init()
    num_exchanges = int(sys.argv[1])
    lanes = [Lane(name, sizes, int(num_exchanges * SHARES[name])) for name, sizes in LANES.items()]
    lanes.append(OneNameLane("sizes", SIZES_OF_ONE_NAME, int(num_exchanges * SHARES["sizes"])))
    num_new = num_exchanges - sum(int(num_exchanges * share) for share in SHARES.values())
    sizes = [NEW_TENSOR_SIZES[index % len(NEW_TENSOR_SIZES)] for index in range((num_new + 1) // 2)]
    lanes.append(NewTensorsLane("new", sizes, num_new))

    with ThreadPoolExecutor(len(lanes)) as pool:
        runs = [pool.submit(lane.run) for lane in lanes]
        for run in as_completed(runs):
            if run.exception():  # the other lanes may now wait for ever
                traceback.print_exception(run.exception())
                os._exit(1)
    wrong = [message for lane in lanes for message in lane.wrong]
    for message in wrong[:10]:
        print("wrong sum:", message)
    print("exchanges", sum(lane.done for lane in lanes), "wrong", len(wrong), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
