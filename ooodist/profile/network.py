"""What exchanging gradients costs, measured by real exchanges of several sizes.

With the terms of :class:`ooodist.schedule.costs.Network`, for m exchanges of n bytes:

* one by one they take m (latency + fixed + n (seconds_per_byte + pull_seconds_per_byte));
* all at a time they take latency + m (fixed + n seconds_per_byte) + n pull_seconds_per_byte;
* behind a computation they make that take m (cpu_seconds_per_exchange + n cpu_seconds_per_byte)
  longer.

These are solved for the costs by least squares of relative errors, none of them negative.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from ooodist.engines.base import Engine
from ooodist.profile.exchange_timing import ExchangeTimer
from ooodist.schedule.costs import Network

logger = logging.getLogger("ooodist")

TINY_BYTES = 1 << 8
FIRST_BYTES = 1 << 17  # for a first idea of the bandwidth
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 22
RUN_SECONDS = 0.06  # that one measurement is to take
REPEATS = 5
MOST_TOGETHER = 16
COMPUTE_SECONDS = 0.12  # of the computation beside which exchanges run, at least
HIDDEN = 0.6  # of it they may take
FIRST_PRODUCTS = 32
CHECK_TOLERANCE = 0.25


def measure_network(engine: Engine) -> Network:
    """Measures what exchanges cost with this engine, here and now; all ranks call it together.

    It takes some seconds: the slower the network, the less it sends.

    Returns:
        the costs on the slowest rank, the same on all ranks; no costs if there is one rank.
    """
    if engine.size == 1:
        return Network(engine.name, 1, by_urgency=_by_urgency(engine))
    timer = ExchangeTimer(engine)
    largest = _largest_bytes(engine, timer)
    network = _fit(engine, timer, [TINY_BYTES, largest // 16, largest // 4, largest])
    network = _with_cpu(engine, timer, network, largest)
    logger.debug("network: %s", network)
    return network


def still_holds(engine: Engine, network: Network) -> bool:
    """Whether an exchange takes as long as a network that was measured before says.

    All ranks call it together and get the same answer.
    """
    if engine.size == 1:
        return True
    expected = _one(network, FIRST_BYTES)
    timer = ExchangeTimer(engine)
    seconds = _slowest(engine, lambda: timer.one_by_one(FIRST_BYTES, 4)) / 4
    holds = abs(seconds / expected - 1) <= CHECK_TOLERANCE
    logger.info(
        "network: an exchange of %d KiB takes %.2f ms; the profile says %.2f ms: %s",
        FIRST_BYTES >> 10,
        seconds * 1e3,
        expected * 1e3,
        "it holds" if holds else "measuring again",
    )
    return holds


def _by_urgency(engine: Engine) -> bool:
    return engine.name == "byteps"


def _one(network: Network, num_bytes: int) -> float:
    """Seconds of one exchange on its own."""
    per_byte = network.seconds_per_byte + network.pull_seconds_per_byte
    return network.latency + network.fixed + num_bytes * per_byte


def _slowest(engine: Engine, measure: Callable[[], float]) -> float:
    """The median of several measurements on the rank where it is largest."""
    own = statistics.median(measure() for _ in range(REPEATS))
    return float(engine.all_reduce(np.array([own]), "max")[0])


def _largest_bytes(engine: Engine, timer: ExchangeTimer) -> int:
    """The size, a power of two, that takes about RUN_SECONDS."""
    tiny, first = (
        _slowest(engine, lambda size=size: timer.one_by_one(size, 1))  # type: ignore[misc]
        for size in (TINY_BYTES, FIRST_BYTES)
    )
    bytes_per_second = FIRST_BYTES / max(first - tiny, 1e-6)
    fitting = int(np.log2(max(1.0, RUN_SECONDS * bytes_per_second)))
    return min(MOST_BYTES, max(LEAST_BYTES, 1 << fitting))


def _count(network_or_seconds: float) -> int:
    """How many exchanges of so many seconds to measure at a time."""
    return max(2, min(MOST_TOGETHER, round(RUN_SECONDS / network_or_seconds)))


def _fit(engine: Engine, timer: ExchangeTimer, sizes: Sequence[int]) -> Network:
    rows: list[list[float]] = []  # times latency, fixed, seconds_per_byte, pull_seconds_per_byte
    measured: list[float] = []
    for size in sizes:
        single = _slowest(engine, lambda size=size: timer.one_by_one(size, 2)) / 2  # type: ignore[misc]
        count = _count(single)
        one_by_one = _slowest(engine, lambda: timer.one_by_one(size, count))
        together = _slowest(engine, lambda: timer.together(size, count))
        rows += [[count, count, count * size, count * size], [1, count, count * size, size]]
        measured += [one_by_one, together]
        logger.debug(
            "network: %d exchanges of %d bytes: %.2f ms one by one, %.2f ms together",
            count,
            size,
            one_by_one * 1e3,
            together * 1e3,
        )
    matrix, seconds = np.array(rows), np.array(measured)
    if engine.name != "byteps":
        matrix = matrix[:, :3]  # a ring has one lane
    scale = matrix.max(axis=0)  # numbers of like size, for the solver
    found, _ = nnls(matrix / seconds[:, None] / scale, np.ones(len(seconds)))
    return Network(
        engine.name, engine.size, *(found / scale).tolist(), by_urgency=_by_urgency(engine)
    )


def _with_cpu(engine: Engine, timer: ExchangeTimer, network: Network, largest: int) -> Network:
    per_product = _slowest(engine, lambda: timer.beside_products(FIRST_PRODUCTS, TINY_BYTES, 0))
    per_product /= FIRST_PRODUCTS
    rows, extra = [], []
    for size in (TINY_BYTES, largest):
        count = _count(_one(network, size)) if size > TINY_BYTES else 2 * MOST_TOGETHER
        exchange_seconds = network.latency + count * (_one(network, size) - network.latency)
        computing = max(COMPUTE_SECONDS, exchange_seconds / HIDDEN)
        products = max(1, round(computing / per_product))
        alone, beside = [], []
        for _ in range(REPEATS):
            alone.append(timer.beside_products(products, size, 0))
            beside.append(timer.beside_products(products, size, count))
        longer = max(0.0, statistics.median(beside) - statistics.median(alone))
        rows.append([count, count * size])
        extra.append(float(engine.all_reduce(np.array([longer]), "max")[0]))
        logger.debug(
            "network: %d exchanges of %d bytes take %.2f ms of a computation of %.2f ms",
            count,
            size,
            extra[-1] * 1e3,
            statistics.median(alone) * 1e3,
        )
    matrix = np.array(rows)
    scale = matrix.max(axis=0)
    (per_exchange, per_byte), _ = nnls(matrix / scale, np.array(extra))
    return replace(
        network,
        cpu_seconds_per_exchange=float(per_exchange / scale[0]),
        cpu_seconds_per_byte=float(per_byte / scale[1]),
    )
