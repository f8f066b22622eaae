"""One worker of delay.py: times exchanges one after the other, and all in flight.

    delay_worker.py FILE

Rank 0 writes FILE: seconds of each, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.profiler.exchange_timing import ExchangeTimer

NUM_BYTES = 4096  # of each; on the wire they take 0.3 ms
COUNT = 16
REPEATS = 5


def main() -> None:
    """Times both in turns."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    engine = engines.init()
    timer = ExchangeTimer(engine, credit=None)
    ways = {"one_by_one": timer.one_by_one, "together": timer.in_flight}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, measure in ways.items():
            seconds[name].append(measure(NUM_BYTES, COUNT))
    if engine.rank == 0:
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        Path(sys.argv[1]).write_text(json.dumps(medians), encoding="utf-8")
    ooodist.shutdown()


if __name__ == "__main__":
    main()
