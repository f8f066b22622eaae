"""Gathers the costs of the stages of all ranks; measures the time of messages and exchanges."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.buckets import Bucket
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.planner.pipeline.actions import Kind
from ooodist.planner.pipeline.costs import StageCost
from ooodist.planner.pipeline.layer_costs import Link

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator
    from ooodist.pipeline.assembly import Assembly

ROUNDS = 7
LINK_BYTES = (1, 4 << 20)  # of a message whose time is latency, and of one that shows the rate
SUM_ROUNDS = 3  # they take longer
LEAST_SUM_SECONDS = 0.02  # of a sum, for which it is measured what it takes from computing
PROBE_WIDTH = 256  # of the matrices that are multiplied meanwhile
TAG = 0  # also used by steps, none of which runs now


def measure_link(world: Communicator) -> Link:
    """Measures the link between the first and the last rank, the least likely to share a host.

    All ranks call it. It is known on rank 0; on others, the link takes no time.
    """
    last = world.size - 1
    seconds = [0.0, 0.0]
    for number, size in enumerate(LINK_BYTES):
        message = np.zeros(size, np.uint8)
        world.barrier()
        if last and world.rank == 0:
            rounds = [_round_trip(world, last, message) for _ in range(ROUNDS)]
            seconds[number] = statistics.median(rounds) / 2
        elif last and world.rank == last:
            for _ in range(ROUNDS):
                world.receive([message], 0, TAG).wait_awake()
                world.send([message], 0, TAG).wait_awake()
    short, long = LINK_BYTES
    return Link(seconds[0], max(0.0, seconds[1] - seconds[0]) / (long - short))


def _round_trip(world: Communicator, other: int, message: np.ndarray) -> float:
    began = time.perf_counter()
    world.send([message], other, TAG).wait_awake()
    world.receive([message], other, TAG).wait_awake()
    return time.perf_counter() - began


def gather_costs(assembly: Assembly, own: Mapping[int, StageCost]) -> tuple[StageCost, ...]:
    """The costs of all stages, with links and exchanges; all ranks call it.

    Seconds are means over the replicas, and bytes those of the replica that keeps most. A sharded
    optimizer's exchanges are measured as sums for all replicas: its reductions move half of that,
    and its broadcasts belong to the update.

    Args:
        assembly: this rank's.
        own: costs of its stages, by number, without links and exchanges.
    """
    transport, ranks = assembly.transport, assembly.ranks
    table = np.zeros((len(assembly.stages), len(fields(StageCost))))
    trained = {number: work.variables for number, work in assembly.works.items()}
    exchanges = _exchange_seconds(transport, ranks, assembly.gradients.begun_by(trained))
    for number, cost in own.items():
        exchange, cpu = exchanges[number]
        table[number] = astuple(replace(cost, exchange=exchange, exchange_cpu=cpu))
    total, most = ranks.world.all_reduce(table, "sum"), ranks.world.all_reduce(table, "max")
    costs = [_cost(*rows) for rows in zip(total / ranks.replicas, most, strict=True)]
    for number, one_way in enumerate(_message_seconds(assembly)):
        costs[number] = replace(costs[number], send_seconds=one_way)
        costs[number + 1] = replace(costs[number + 1], send_back_seconds=one_way)
    return tuple(costs)


def _cost(mean: np.ndarray, most: np.ndarray) -> StageCost:
    values: dict[str, Any] = {
        field.name: round(largest) if field.name.endswith(("bytes", "buckets")) else float(value)
        for field, value, largest in zip(fields(StageCost), mean, most, strict=True)
    }
    return StageCost(**values)


def _message_seconds(assembly: Assembly) -> list[float]:
    """Half of the round trip, in seconds, of each boundary; measures one at a time."""
    transport, ranks, rank_of = assembly.transport, assembly.ranks, assembly.plan.schedule.rank_of
    found = np.zeros(len(assembly.boundaries))
    for number, boundary in enumerate(assembly.boundaries):
        ends = rank_of[number], rank_of[number + 1]
        if ends[0] != ends[1] and ranks.position in ends:
            there, back = boundary.receive_buffers(Kind.F), boundary.receive_buffers(Kind.I)
            if ranks.position == ends[0]:
                rounds = [_ping(transport, ends[1], there, back) for _ in range(ROUNDS)]
                found[number] = statistics.median(rounds) / 2
            else:
                for _ in range(ROUNDS):
                    _pong(transport, ends[0], there, back)
        ranks.world.barrier()
    total = ranks.world.all_reduce(found, "sum")
    return [float(seconds) for seconds in total / ranks.replicas]


def _exchange_seconds(
    transport: Transport, ranks: Ranks, summed: Mapping[int, Sequence[Bucket]]
) -> dict[int, tuple[float, float]]:
    """The seconds of each exchange of this rank, and those that it takes from computing;
    all positions measure at the same time, as they exchange at nearly the same time in a step."""
    if ranks.replicas == 1:
        return dict.fromkeys(summed, (0.0, 0.0))
    found: dict[int, tuple[float, float]] = {}
    for number, buckets in sorted(summed.items()):  # of as many stages on all ranks
        arrays = [bucket.empty() for bucket in buckets]
        alone = statistics.median(_sum(transport, ranks, arrays) for _ in range(SUM_ROUNDS))
        found[number] = alone, 0.0
        # A single bucket has nothing beside it; and what a GPU computes needs no processor.
        is_beside = len(buckets) > 1 and not tf.config.get_visible_devices("GPU")
        longest = ranks.world.all_reduce(np.array(alone if is_beside else 0.0), "max")
        if longest >= LEAST_SUM_SECONDS:
            rounds = [
                _sum_beside(transport, ranks, arrays, float(longest)) for _ in range(SUM_ROUNDS)
            ]
            if is_beside:
                seconds, taken = np.median(rounds, axis=0)
                found[number] = float(seconds), float(taken)
    return found


def _sum(transport: Transport, ranks: Ranks, arrays: Sequence[np.ndarray]) -> float:
    ranks.world.barrier()
    began = time.perf_counter()
    for message in _begin_sums(transport, ranks, arrays):
        transport.wait(message)
    return time.perf_counter() - began


def _sum_beside(
    transport: Transport, ranks: Ranks, arrays: Sequence[np.ndarray], seconds: float
) -> tuple[float, float]:
    """Sums while the rank computes, as W's do.

    Args:
        transport, ranks, arrays: as for a sum alone.
        seconds: what that takes.

    Returns:
        the seconds that it takes, and those of them that are missing to what was computed.
    """
    ranks.world.barrier()
    end = time.perf_counter() + seconds
    number, took = _compute(lambda: time.perf_counter() >= end)
    each = took / number
    ranks.world.barrier()
    sums = _begin_sums(transport, ranks, arrays)
    limit = time.perf_counter() + 10 * seconds
    number, took = _compute(
        lambda: all(message.done.is_set() for message in sums) or time.perf_counter() >= limit
    )
    for message in sums:
        transport.wait(message)
    return took, max(0.0, took - number * each)


def _compute(is_over: Callable[[], bool]) -> tuple[int, float]:
    """Multiplies matrices until something is over; returns how often, and the seconds."""
    matrix = tf.ones((PROBE_WIDTH, PROBE_WIDTH))
    number, began = 0, time.perf_counter()
    while not number or not is_over():
        tf.matmul(matrix, matrix)  # as all of TensorFlow it lets the thread that moves messages run
        number += 1
    return number, time.perf_counter() - began


def _begin_sums(transport: Transport, ranks: Ranks, arrays: Sequence[np.ndarray]) -> list[Message]:
    name = "the measuring of exchanges"
    return [transport.sum(name, ranks.peers, array) for array in arrays]


def _ping(transport: Transport, peer: int, there: Sequence[Any], back: Sequence[Any]) -> float:
    message = transport.receive("the measuring of links", peer, TAG, back)
    began = time.perf_counter()
    transport.send("the measuring of links", peer, TAG, there)
    transport.wait(message)
    return time.perf_counter() - began


def _pong(transport: Transport, peer: int, there: Sequence[Any], back: Sequence[Any]) -> None:
    transport.wait(transport.receive("the measuring of links", peer, TAG, there))
    transport.send("the measuring of links", peer, TAG, back)
    transport.flush()
