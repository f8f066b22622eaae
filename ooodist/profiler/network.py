"""Measures the cost of exchanging gradients here, by real exchanges of several sizes."""

from __future__ import annotations

import logging
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ooodist.engines.base import Engine
from ooodist.planner.costs import Network
from ooodist.profiler.exchange_timing import MOST_TRACED, ExchangeTimer
from ooodist.profiler.fit import ComputationSlowdown, Timed, fit_cpu, fit_lanes
from ooodist.util.digest import digest

logger = logging.getLogger("ooodist")

TINY_BYTES = 1 << 8
FIRST_BYTES = 1 << 18  # for a first estimate of the bandwidth
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 22  # bounds of the largest exchanges
LARGEST_SECONDS = 0.15  # one of the largest exchanges takes at most about this long
RUN_SECONDS = 0.02  # the exchanges of one measurement take about this long
LEAST_REPEATS, REPEATS = 3, 7  # the more, the less they agree
STEADY = 0.1  # half of the measurements are nearer to the median than this, relatively: they agree
STEADY_PAIR = 0.02  # so are pairs of computations with and without exchanges, relative to one
LEAST_AT_A_TIME, MOST_AT_A_TIME = 2, 8
AT_SERVERS = 16  # exchanges at a time, with servers
TINY_AT_A_TIME = 32  # beside a computation, where each exchange costs little
COMPUTE_SECONDS = 0.06  # the least time of a computation beside which exchanges run
BESIDE_SECONDS = 0.15  # of exchanges beside a computation: their effect is small and noisy
OUTLASTING = 1.5  # a computation beside timed exchanges takes this many times as long as they
HIDDEN = 0.6  # exchanges take at most this share of the computation that they slow down
MOST_STEP_SECONDS = 3.0  # for timed training steps; at least one pair, with and without exchanges
FIRST_PRODUCTS = 2
COPIED_BYTES = 1 << 23
CHECK_TOLERANCE = 0.25


def measure_network(
    engine: Engine, step: Callable[[], object], *, for_plans: bool = True
) -> Network:
    """Measures what exchanges cost with this engine now; all ranks call it together.

    It takes about eight seconds; the slower the network, the less it sends.

    Args:
        engine: the engine whose exchanges are measured.
        step: computes a training step, to measure how much exchanges beside it slow it down:
            more than matrix products (expr/data_par).
        for_plans: have no more exchanges in flight than plans do. A library may merge exchanges
            that are in flight together, above all small ones; they then cost less than in a plan.

    Returns:
        the costs on the slowest rank, the same on all ranks; zero costs if there is one rank.
    """
    by_urgency = engine.kind.sends_by_urgency
    if engine.size == 1:
        return Network(engine.name, 1, by_urgency=by_urgency)
    timer = ExchangeTimer(engine, _credit_of_plans(engine) if for_plans else engine.max_credit)
    smallest = _slowest(engine, timer.one_by_one, TINY_BYTES, 1)
    first = _slowest(engine, timer.one_by_one, FIRST_BYTES, 1)
    largest = _fitting_bytes(engine, FIRST_BYTES / max(first - smallest, 1e-6))
    per_byte = max(0.0, _slowest(engine, timer.one_by_one, largest, 1) - smallest) / largest
    product = _product_seconds(engine, timer)
    cores, sharing = _cores(engine)
    # Ranks that share cores wait for an exchange together, so it meets idle cores; while they
    # compute, its cost is processor time.
    timed = [
        _timed(engine, timer, size, smallest + size * per_byte, None if sharing > 1 else product)
        for size in (TINY_BYTES, largest // 16, largest)
    ]
    lanes = fit_lanes(timed, two_lanes=by_urgency)
    tiny, _, large = timed
    both = [
        _beside_products(engine, timer, tiny, product),
        _beside_steps(engine, timer, large, step),
    ]
    if not timer.on_gpu:
        both = [_with_processor_time(engine, timer, each, cores / sharing) for each in both]
    cpu = fit_cpu(both)
    network = Network(
        engine=engine.name,
        workers=engine.size,
        **lanes._asdict(),
        cpu_seconds_per_byte=cpu.per_byte,
        cpu_seconds_per_exchange=cpu.per_exchange,
        cpu_seconds_per_copied_byte=_slowest(engine, timer.copying, COPIED_BYTES) / COPIED_BYTES,
        by_urgency=by_urgency,
    )
    logger.debug("network: %s", network)
    return network


def still_holds(engine: Engine, network: Network) -> bool:
    """Whether exchanges still take as long as the measured ``network`` says.

    All ranks call it together and get the same answer.
    """
    if engine.size == 1:
        return True
    num_bytes = _fitting_bytes(engine, 1 / max(network.seconds_per_byte, 1e-12))
    once = network.fixed + num_bytes * network.seconds_per_byte
    timer = ExchangeTimer(engine, _credit_of_plans(engine))
    _, sharing = _cores(engine)
    product = None if sharing > 1 else _product_seconds(engine, timer)
    _, count, _, seconds = _timed(engine, timer, num_bytes, max(once, 1e-6), product)
    expected = network.latency + count * once + num_bytes * network.pull_seconds_per_byte
    holds = abs(seconds - expected) <= CHECK_TOLERANCE * expected
    logger.info(
        "profile: %d exchanges of %d KiB take %.2f ms, and %.2f ms in the profile: %s",
        count,
        num_bytes >> 10,
        seconds * 1e3,
        expected * 1e3,
        "the network is as it was" if holds else "measuring the network again",
    )
    return holds


def _credit_of_plans(engine: Engine) -> int | None:
    """How many exchanges of a plan are in the engine at a time; None: any number."""
    if engine.kind.sends_by_urgency:  # it gets all exchanges and picks among them
        return None
    return max(engine.credits)


def _fitting_bytes(engine: Engine, bytes_per_second: float) -> int:
    """The bytes, a power of two, of an exchange that takes about LARGEST_SECONDS."""
    most = min(MOST_BYTES, max(LEAST_BYTES, LARGEST_SECONDS * bytes_per_second))
    if engine.partition_bytes is not None:  # of larger ones, each piece is its own exchange
        most = min(most, engine.partition_bytes)
    return 1 << int(np.log2(most))


def _product_seconds(engine: Engine, timer: ExchangeTimer) -> float:
    """The seconds of a matrix product, as they run beside exchanges."""
    return _slowest(engine, timer.beside_products, FIRST_PRODUCTS, TINY_BYTES, 0) / FIRST_PRODUCTS


def _timed(
    engine: Engine, timer: ExchangeTimer, num_bytes: int, one: float, product: float | None
) -> Timed:
    """Times exchanges of one size, about ``one`` second each, beside matrix products.

    A product takes ``product`` seconds; with None, nothing runs beside the exchanges.
    """
    count = max(LEAST_AT_A_TIME, min(MOST_AT_A_TIME, round(RUN_SECONDS / one)))
    if engine.kind.has_servers:
        # BytePS may have a few all on one server, and a server beside a worker answers while its
        # host's link has nothing to send yet: that lasts only as long as the first ones.
        count = AT_SERVERS
    # Beside a computation, as in training: on a busy core, threads of a library wait their turn.
    products = 0 if product is None else 1 + round(OUTLASTING * count * one / product)
    one_by_one = _slowest(engine, timer.one_by_one, num_bytes, count, products)
    together = _slowest(engine, timer.in_flight, num_bytes, count, products)
    logger.debug(
        "network: %d exchanges of %d bytes take %.2f ms one by one, %.2f ms together",
        count,
        num_bytes,
        one_by_one * 1e3,
        together * 1e3,
    )
    return Timed(num_bytes, count, one_by_one, together)


def _beside_products(
    engine: Engine, timer: ExchangeTimer, timed: Timed, product: float
) -> ComputationSlowdown:
    """Measures how much longer products of ``product`` seconds take with exchanges beside them."""
    most = max(MOST_TRACED, BESIDE_SECONDS / timed.each)
    count = _in_full_bursts(min(TINY_AT_A_TIME, most))
    products = max(1, round(max(COMPUTE_SECONDS, count * timed.each / HIDDEN) / product))
    seconds = partial(timer.beside_products, products, timed.num_bytes)
    return _longer(engine, timed.num_bytes, count, seconds, REPEATS)


def _beside_steps(
    engine: Engine, timer: ExchangeTimer, timed: Timed, step: Callable[[], object]
) -> ComputationSlowdown:
    """Measures how much longer training steps take with exchanges beside them."""
    alone = _most(engine, timer.beside_calls(step, 1, timed.num_bytes, 0))
    steps = max(1, round(BESIDE_SECONDS / HIDDEN / alone))
    count = _in_full_bursts(HIDDEN * steps * alone / timed.each)
    seconds = partial(timer.beside_calls, step, steps, timed.num_bytes)
    repeats = max(1, min(REPEATS, round(MOST_STEP_SECONDS / (2 * steps * alone))))
    return _longer(engine, timed.num_bytes, count, seconds, repeats)


def _in_full_bursts(count: float) -> int:
    """About as many exchanges, of which no rest has to be traced as well; at least two."""
    whole = max(2, round(count))
    return whole - whole % MOST_TRACED if whole > MOST_TRACED else whole


def _longer(
    engine: Engine, num_bytes: int, count: int, seconds: Callable[[int], float], repeats: int
) -> ComputationSlowdown:
    """Measures how much longer a computation takes with ``count`` exchanges than with none.

    That is the median of at most ``repeats`` pairs; of fewer, if they agree.
    """
    alone: list[float] = []
    pairs: list[float] = []
    while len(pairs) < repeats:
        # In pairs of alternating order, so that changes of the machine's speed, which exceed what
        # exchanges cost, affect both.
        order = (0, count) if len(pairs) % 2 == 0 else (count, 0)
        took = {number: seconds(number) for number in order}
        alone.append(took[0])
        pairs.append(took[count] - took[0])
        if _agree(engine, pairs, STEADY_PAIR * statistics.median(alone)):
            break
    longer = _most(engine, max(0.0, statistics.median(pairs)))
    logger.debug(
        "network: %d exchanges of %d bytes lengthen a computation of %.2f ms by %.2f ms",
        count,
        num_bytes,
        statistics.median(alone) * 1e3,
        longer * 1e3,
    )
    return ComputationSlowdown(num_bytes, count, longer)


def _with_processor_time(
    engine: Engine, timer: ExchangeTimer, beside: ComputationSlowdown, cores: float
) -> ComputationSlowdown:
    """Raises ``beside`` to at least the exchanges' processor time, divided by a rank's cores.

    A computation that keeps all cores busy takes at least that much longer, however noisy it is.
    """
    spent = _slowest(engine, timer.processing, beside.num_bytes, beside.num_exchanges) / cores
    logger.debug(
        "network: %d exchanges of %d bytes take %.2f ms of %g cores",
        beside.num_exchanges,
        beside.num_bytes,
        spent * 1e3,
        cores,
    )
    return beside._replace(longer=max(beside.longer, spent))


def _cores(engine: Engine) -> tuple[int, int]:
    """The number of cores that this rank may run on, and of ranks that share them."""
    cores = os.sched_getaffinity(0)
    place = digest(f"{platform.node()} {sorted(cores)}")
    places = engine.gather(np.frombuffer(place[:4], np.int32))
    return len(cores), int((places == places[engine.rank]).sum())


def _slowest(engine: Engine, measure: Callable[..., float], *arguments: int) -> float:
    """The median of several measurements, from the rank where it is largest."""
    seconds: list[float] = []
    while len(seconds) < REPEATS:
        seconds.append(measure(*arguments))
        if _agree(engine, seconds, STEADY * statistics.median(seconds)):
            break
    return _most(engine, statistics.median(seconds))


def _agree(engine: Engine, measured: Sequence[float], within: float) -> bool:
    """Whether, on each rank, half of the measurements differ by no more from the median.

    With fewer than LEAST_REPEATS, they do not.
    """
    if len(measured) < LEAST_REPEATS:
        return False
    median = statistics.median(measured)
    return _most(engine, statistics.median(abs(each - median) for each in measured) - within) <= 0


def _most(engine: Engine, seconds: float) -> float:
    return float(engine.all_reduce(np.array([seconds]), "max")[0])
