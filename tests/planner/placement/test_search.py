"""The placement that is found is the best of all, by trying them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.plan import first_plan
from ooodist.planner.placement.hosts import Hosts, Placement
from ooodist.planner.placement.search import MOST_DIVISIONS, best_placement, placements
from tests.thorough import few

MICROBATCHES = 3


def every(ranks: int, replicas: int, devices: int) -> Iterator[Placement]:
    """All placements in which replicas are placed alike, whatever crosses hosts."""
    for inside in range(1, replicas + 1):
        if replicas % inside or devices % inside or ranks % (devices // inside):
            continue
        size = devices // inside
        for groups in itertools.product(range(ranks // size), repeat=ranks):
            if set(Counter(groups).values()) == {size} and len(set(groups)) == ranks // size:
                yield Placement(groups, inside)


def seconds(placement: Placement, costs: ModelCosts, hosts: Hosts, chunks: int) -> float:
    placed = placement.costs(costs, hosts)
    return first_plan(placed, len(placement.groups), MICROBATCHES, chunks).timeline.step_seconds


@few(25)
@given(
    st.sampled_from([(4, 1, 2), (4, 2, 4), (4, 2, 2), (2, 2, 2), (6, 1, 3)]),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=12, max_size=12),
    st.sampled_from([1, 2]),
)
def test_none_is_faster(
    size: tuple[int, int, int], num_bytes: list[tuple[int, int]], chunks: int
) -> None:
    ranks, replicas, devices = size
    layers = tuple(
        LayerCost("x", 1.0, 1.0, 1.0, sent_bytes=sent, exchanged_bytes=exchanged + 1)
        for sent, exchanged in num_bytes
    )
    costs = ModelCosts(layers, replicas=replicas)
    hosts = Hosts(ranks * replicas // devices, devices, Link(0.0, 0.01), Link(0.1, 0.2))
    found = best_placement(costs, hosts, ranks, MICROBATCHES, chunks)
    least = min(seconds(each, costs, hosts, chunks) for each in every(*size))
    assert seconds(found, costs, hosts, chunks) == pytest.approx(least)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 16))
def test_where_devices_are_all_used_there_is_a_placement(
    ranks: int, replicas: int, devices: int
) -> None:
    found = list(placements(ranks, replicas, devices))
    assert bool(found) == (ranks * replicas % devices == 0)
    for placement in found:
        hosts = Counter(
            placement.host(*rank) for rank in itertools.product(range(replicas), range(ranks))
        )
        assert hosts == dict.fromkeys(range(ranks * replicas // devices), devices)
    assert len(set(found)) == len(found)


def test_neighbors_are_together_in_long_pipelines() -> None:
    """There are too many divisions to try them all."""
    ways = math.factorial(16) // (math.factorial(4) ** 4 * math.factorial(4))
    assert ways > MOST_DIVISIONS
    found = list(placements(16, 1, 4))
    assert len(found) == 4  # beginning with any of the first four
    for placement in found:
        changes = sum(a != b for a, b in itertools.pairwise(placement.groups))
        assert changes in (3, 4)


def test_what_takes_longer_stays_inside() -> None:
    """Large gradients keep replicas inside of hosts, large activations the pipeline."""
    layer = LayerCost("x", 1.0, 1.0, 1.0, sent_bytes=1, exchanged_bytes=1)
    hosts = Hosts(2, 2, Link(), Link(0.0, 0.1))
    for sent, exchanged, inside in ((1, 100, 2), (10, 1, 1)):
        layers = (replace(layer, sent_bytes=sent, exchanged_bytes=exchanged),) * 4
        found = best_placement(ModelCosts(layers, replicas=2), hosts, 2, 8)
        assert found.replicas == inside


def test_the_hosts_are_divided_where_little_is_sent() -> None:
    sent = (9, 1, 9, 9, 1, 9)
    layers = tuple(LayerCost("x", 1.0, 1.0, 1.0, sent_bytes=size) for size in sent)
    hosts = Hosts(2, 3, Link(), Link(0.0, 0.5))
    found = best_placement(ModelCosts(layers), hosts, 6, 6, 1)
    chain = list(itertools.pairwise(range(6)))
    assert found.crossings(chain) == {(1, 2), (4, 5)}


def test_devices_without_a_rank() -> None:
    costs = ModelCosts((LayerCost("x", 1.0, exchanged_bytes=1),) * 4, replicas=2)
    with pytest.raises(UserError, match="2 hosts with 4 devices each are 8 devices, but pipeline"):
        best_placement(costs, Hosts(2, 4, Link(), Link()), 2, 4)


def test_what_does_not_fit_is_placed_all_the_same() -> None:
    """So that it can be told why it does not."""
    layers = (LayerCost("x", 1.0, weight_bytes=10),) * 4
    costs = ModelCosts(layers, memory_limit=1)
    found = best_placement(costs, Hosts(2, 2, Link(), Link(1.0)), 4, 4)
    assert found.groups == (0, 0, 1, 1)
