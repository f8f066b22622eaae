"""One worker of test_horovod_patch.py: ``horovod_cycle_worker.py EXCHANGES``."""

from __future__ import annotations

import os
import statistics
import sys
import time

import tensorflow as tf

import ooodist
from ooodist import engines

exchanges = int(sys.argv[1])
late = float(os.environ.get("LATE_SECONDS", "0"))
engine = ooodist.init("horovod")


@tf.function(autograph=False)
def exchange(value: tf.Tensor) -> tf.Tensor:
    return engine.sum_in_graph(value, "value")


one = tf.ones([1])
exchange(one), exchange(one)  # it is known to all, and answered from Horovod's cache
seconds = []
for _ in range(exchanges):
    began = time.perf_counter()
    if engine.rank == 1:
        time.sleep(late)
    assert exchange(one).numpy() == 2
    seconds.append(time.perf_counter() - began)
if engine.rank == 0:
    print(f"seconds is {statistics.median(seconds)}")
engines.shutdown()
