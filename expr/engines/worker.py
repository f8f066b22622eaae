"""One worker of run.py: exchanges some tensors, again and again, and writes down what it costs.

    worker.py OPTIONS_JSON FOLDER

Each repeat is one exchange of all tensors, as a step of training makes it, after a pause in which
nothing is exchanged. A line of FOLDER/RANK.csv says of each: seconds; and core milliseconds, of
this process, of the host's other processes (servers) and, if the core is kept busy, of everything:
what a program loses that computes on the same core all the time, in processes, in the kernel and in
the caches.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

import ooodist
from ooodist import engines

PAUSE = 0.5  # seconds


@dataclass(frozen=True)
class Options:
    """What is exchanged.

    Attributes:
        num_bytes: of each tensor.
        count: of tensors.
        credit: how many may be in flight; 0: all.
        chained: each starts from the last one's sum.
        busy: another thread computes all the time.
        planned: the engine is set up for plans.
    """

    num_bytes: int
    count: int
    credit: int = 0
    chained: bool = False
    busy: bool = False
    planned: bool = False
    repeats: int = 5


@dataclass(frozen=True)
class Moment:
    """Seconds: of the clock, and of CPU since the processes began. ``blocks``: computed so far."""

    clock: float
    own: float
    others: float
    computing: float
    blocks: int


class Computing(threading.Thread):
    """Computes without a pause, and counts what it has done."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.blocks = 0
        self._block = bytes(1 << 16)  # stays in the first cache; without Python's lock

    def run(self) -> None:
        while True:
            zlib.crc32(self._block)
            self.blocks += 1

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        assert self.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.ident))


def main() -> None:
    """Runs all repeats."""
    options = Options(**json.loads(sys.argv[1]))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    engine = engines.init(planned=options.planned)
    step = exchange_of(engine, options)
    step(), step()
    computing = Computing() if options.busy else None
    if computing:
        computing.start()
    others = other_processes()
    with open(Path(sys.argv[2]) / f"{engine.rank}.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "own_ms", "others_ms", "lost_ms", "idle_own_ms_per_second"])
        for _ in range(options.repeats):
            engine.barrier()
            moments = [now(computing, others)]
            time.sleep(PAUSE)
            engine.barrier()
            moments.append(now(computing, others))
            step()
            moments.append(now(computing, others))
            rows.writerow(difference(*moments))
            file.flush()
    ooodist.shutdown()


def exchange_of(
    engine: engines.base.Engine, options: Options
) -> tf.types.experimental.GenericFunction:
    """The traced function that exchanges all tensors."""
    size = max(1, options.num_bytes // 4)
    variables = [
        tf.Variable(tf.ones([size])) for _ in range(1 if options.chained else options.count)
    ]

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        sums: list[tf.Tensor] = []
        for index in range(options.count):
            if options.chained:
                value = sums[-1] / engine.size if sums else variables[0].read_value()
            else:
                value = variables[index].read_value()
            if options.credit and len(sums) >= options.credit:
                with tf.control_dependencies([sums[-options.credit]]):
                    value = tf.identity(value)
            name = f"tensor{0 if options.chained else index}"
            sums.append(engine.sum_in_graph(value, name))
        return tf.stack([total[0] for total in sums])

    return step


def other_processes() -> list[int]:
    """The other processes of this host, which is a network namespace."""
    own = os.readlink("/proc/self/ns/net")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if os.readlink(entry / "ns" / "net") == own:
                    found.append(int(entry.name))
            except OSError:  # it has ended
                continue
    return found


def cpu_seconds(process: int) -> float:
    """CPU that a process has used, to the microsecond (which /proc/PID/stat does not say)."""
    tasks = Path(f"/proc/{process}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def now(computing: Computing | None, others: list[int]) -> Moment:
    """How things stand."""
    busy = computing.cpu() if computing else 0.0
    return Moment(
        clock=time.perf_counter(),
        own=cpu_seconds(os.getpid()) - busy,
        others=sum(map(cpu_seconds, others)),
        computing=busy,
        blocks=computing.blocks if computing else 0,
    )


def difference(before: Moment, start: Moment, end: Moment) -> list[float]:
    """The row of one repeat: a pause from ``before`` to ``start``, and an exchange to ``end``."""
    own, others = end.own - start.own, end.others - start.others
    lost = 0.0
    if end.blocks:
        block = (start.computing - before.computing) / (start.blocks - before.blocks)
        slower = (end.computing - start.computing) - block * (end.blocks - start.blocks)
        lost = own + others + slower
    idle = (start.own - before.own) / (start.clock - before.clock)
    row = [end.clock - start.clock, own * 1e3, others * 1e3, lost * 1e3, idle * 1e3]
    return [round(value, 6) for value in row]


if __name__ == "__main__":
    main()
