"""Gathers the costs of the stages of all ranks, and measures the time of messages."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from ooodist.engines.mpi import wait
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.runtime import Boundary
from ooodist.pipeline.runtime.transport import Transport
from ooodist.planner.pipeline.actions import FORWARD, INPUT_GRADIENT
from ooodist.planner.pipeline.costs import StageCost

ROUNDS = 7
TAG = 0  # also used by steps, none of which runs now


def gather_costs(
    own: Mapping[int, StageCost],
    transport: Transport,
    ranks: Ranks,
    rank_of: Sequence[int],
    boundaries: Sequence[Boundary],
) -> tuple[StageCost, ...]:
    """Returns the costs of all stages, averaged over replicas, with the links; all ranks call it.

    Args:
        own: costs of this rank's stages, by number, without the links.
        transport: to the ranks of the pipeline.
        ranks: the position of this rank among all.
        rank_of: the position of each stage.
        boundaries: the boundary after each stage but the last.
    """
    table = np.zeros((len(rank_of), len(fields(StageCost))))
    for number, cost in own.items():
        table[number] = astuple(cost)
    total = np.empty_like(table)
    wait(ranks.world.Iallreduce(table, total, op=MPI.SUM))
    mean = total / ranks.replicas
    costs = [_cost(row) for row in mean]
    seconds = _message_seconds(transport, ranks, rank_of, boundaries)
    for number, one_way in enumerate(seconds):
        costs[number] = replace(costs[number], send_seconds=one_way)
        costs[number + 1] = replace(costs[number + 1], send_back_seconds=one_way)
    return tuple(costs)


def _cost(row: np.ndarray) -> StageCost:
    values: dict[str, Any] = {
        field.name: round(value) if field.name.endswith("bytes") else float(value)
        for field, value in zip(fields(StageCost), row, strict=True)
    }
    return StageCost(**values)


def _message_seconds(
    transport: Transport, ranks: Ranks, rank_of: Sequence[int], boundaries: Sequence[Boundary]
) -> list[float]:
    """Returns half of the round trip, in seconds, of each boundary; measures one at a time."""
    found = np.zeros(len(boundaries))
    for number, boundary in enumerate(boundaries):
        ends = rank_of[number], rank_of[number + 1]
        if ends[0] != ends[1] and ranks.position in ends:
            there, back = (
                boundary.receive_buffers(FORWARD),
                boundary.receive_buffers(INPUT_GRADIENT),
            )
            if ranks.position == ends[0]:
                rounds = [_ping(transport, ends[1], there, back) for _ in range(ROUNDS)]
                found[number] = statistics.median(rounds) / 2
            else:
                for _ in range(ROUNDS):
                    _pong(transport, ends[0], there, back)
        wait(ranks.world.Ibarrier())
    total = np.empty_like(found)
    wait(ranks.world.Iallreduce(found, total, op=MPI.SUM))
    return [float(seconds) for seconds in total / ranks.replicas]


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
