"""Searches for the placement of pipelines on hosts with which a step is fastest.

All replicas are placed alike. What matters then is how many replicas share a host, and which
neighbors in the pipeline are on different hosts. A placement in which the neighbors of another one
are on different hosts, and some more, is never faster. What remains is simulated, each with the
best known schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import ModelCosts
from ooodist.planner.pipeline.plan import first_plan
from ooodist.planner.placement.hosts import Hosts, Placement

MOST_DIVISIONS = 2_000  # of positions into groups; beyond, only neighbors are together


def best_placement(
    costs: ModelCosts, hosts: Hosts, ranks: int, microbatches: int, chunks: int | None = None
) -> Placement:
    """The placement whose step is fastest in simulation.

    It is the best of all in which replicas are placed alike, for pipelines of which there are at
    most ``MOST_DIVISIONS`` divisions into groups: such as 8 ranks on hosts of 4 devices.

    Args:
        costs: the costs of the layers, and the number of replicas.
        hosts: the hosts, all of whose devices are used.
        ranks: the number of ranks of a pipeline.
        microbatches: the number of micro-batches in a step of a pipeline.
        chunks: stages per rank; None: as many as are best.

    Raises:
        UserError: there are more or fewer devices than ranks of all pipelines.
    """
    used, there = ranks * costs.replicas, hosts.number * hosts.devices
    if used != there:
        raise UserError(
            f"{hosts.number} hosts with {hosts.devices} devices each are {there} devices, but "
            f"pipeline {ranks} x data {costs.replicas} are {used} ranks; change the one or the "
            "other, so that each device has a rank"
        )
    candidates = list(placements(ranks, costs.replicas, hosts.devices))

    def seconds(placement: Placement) -> float:
        try:
            plan = first_plan(placement.costs(costs, hosts), ranks, microbatches, chunks)
        except UserError:
            return math.inf  # with each placement, as they keep the same in memory
        return plan.seconds

    return min(candidates, key=seconds)


def placements(ranks: int, replicas: int, devices: int) -> Iterator[Placement]:
    """Yields the placements that may be the best.

    Args:
        ranks: the number of ranks of a pipeline.
        replicas: the number of pipelines.
        devices: devices per host, which divides the number of all ranks.
    """
    for inside in range(min(devices, replicas), 0, -1):
        if devices % inside == 0 and replicas % inside == 0 and ranks % (devices // inside) == 0:
            yield from _least_crossing(ranks, devices // inside, inside)


def _least_crossing(ranks: int, size: int, inside: int) -> Iterator[Placement]:
    """Yields divisions into groups of this size, but none that crosses hosts wherever another one
    does, and elsewhere."""
    # Neighbors of a ring: with several stages per rank, the last rank sends to the first.
    pairs = [(position, (position + 1) % ranks) for position in range(ranks)]
    found: dict[frozenset[tuple[int, int]], Placement] = {}
    for groups in _divisions(ranks, size):
        placement = Placement(groups, inside)
        found.setdefault(placement.crossings(pairs), placement)
    for crossings, placement in found.items():
        if not any(other < crossings for other in found):
            yield placement


def _divisions(ranks: int, size: int) -> Iterator[tuple[int, ...]]:
    """Yields, for each position, the number of its group; neighbors together come first."""
    groups = ranks // size
    for offset in range(size if groups > 1 else 1):
        yield tuple((position + offset) // size % groups for position in range(ranks))
    ways = math.factorial(ranks) // (math.factorial(size) ** groups * math.factorial(groups))
    if ways <= MOST_DIVISIONS:
        yield from _all_divisions((None,) * ranks, 0, size)


def _all_divisions(
    placed: tuple[int | None, ...], group: int, size: int
) -> Iterator[tuple[int, ...]]:
    """Yields all ways to complete a division of which groups before ``group`` are complete."""
    free = [position for position, at in enumerate(placed) if at is None]
    if not free:
        yield tuple(at for at in placed if at is not None)
        return
    first, *others = free  # which group is called the first makes no difference
    for members in itertools.combinations(others, size - 1):
        chosen = {first, *members}
        now = tuple(group if at in chosen else old for at, old in enumerate(placed))
        yield from _all_divisions(now, group + 1, size)
