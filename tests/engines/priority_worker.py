"""One worker of test_priority.py."""

from __future__ import annotations

import os

import ooodist
from ooodist import engines

engine = ooodist.init()
threads = [int(name) for name in os.listdir("/proc/self/task")]
hurried = [thread for thread in threads if os.getpriority(os.PRIO_PROCESS, thread) == -10]
if engine.rank == 0:
    print(f"hurried is {len(hurried)}")
    print(f"threads is {len(threads)}")
engines.shutdown()
