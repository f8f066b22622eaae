"""What links a placement gives to pipelines and replicas."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.placement.hosts import Hosts, Placement

INSIDE, BETWEEN = Link(0.0, 1.0), Link(2.0, 10.0)
LAYERS = (LayerCost("a", 1.0, exchanged_bytes=4),)


def costs_of(placement: Placement, replicas: int, hosts: int, devices: int) -> ModelCosts:
    costs = ModelCosts(LAYERS, replicas=replicas)
    return placement.costs(costs, Hosts(hosts, devices, INSIDE, BETWEEN))


def test_a_pipeline_inside_of_each_host() -> None:
    """Its messages stay inside; of each host four ranks sum their gradients over one link."""
    costs = costs_of(Placement((0, 0, 0, 0), 1), replicas=2, hosts=2, devices=4)
    assert costs.links == ((INSIDE,) * 4,) * 4
    assert costs.replica_link == Link(2.0, 40.0)


def test_replicas_inside_of_each_host() -> None:
    """They sum their gradients inside; two of them send over the host's link at the same time."""
    costs = costs_of(Placement((0, 0, 1, 1), 2), replicas=2, hosts=2, devices=4)
    shared = Link(2.0, 20.0)
    near, far = (INSIDE, INSIDE, shared, shared), (shared, shared, INSIDE, INSIDE)
    assert costs.links == (near, near, far, far)
    assert costs.replica_link == INSIDE


def test_some_replicas_and_positions_in_each_host() -> None:
    costs = costs_of(Placement((0, 0, 1, 1), 2), replicas=4, hosts=4, devices=4)
    assert costs.replica_link == Link(2.0, 20.0)  # of the two positions in a host
    assert costs.link_between(0, 3) == Link(2.0, 20.0)  # of the two replicas


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.randoms())
def test_each_host_has_as_many_ranks_as_devices(
    groups: int, size: int, inside: int, others: int, chance: random.Random
) -> None:
    order = [group for group in range(groups) for _ in range(size)]
    chance.shuffle(order)
    placement = Placement(tuple(order), inside)
    replicas = inside * others
    ranks = list(itertools.product(range(replicas), range(groups * size)))
    counts = Counter(placement.host(*rank) for rank in ranks)
    assert counts == dict.fromkeys(range(groups * others), size * inside)
    costs = costs_of(placement, replicas, groups * others, size * inside)
    for replica, (one, other) in itertools.product(
        range(replicas), itertools.permutations(range(groups * size), 2)
    ):
        is_inside = placement.host(replica, one) == placement.host(replica, other)
        assert (costs.link_between(one, other) == INSIDE) == is_inside
    for position in range(groups * size):
        hosts = {placement.host(replica, position) for replica in range(replicas)}
        assert (costs.replica_link == INSIDE) == (len(hosts) == 1)


def test_crossings() -> None:
    placement = Placement((0, 1, 1, 0), 1)
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert placement.crossings(ring) == {(0, 1), (2, 3)}
    assert placement.crossings([(1, 2)]) == frozenset()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_other_costs_stay(replicas: int) -> None:
    costs = costs_of(Placement((0, 1), replicas), replicas, hosts=2, devices=replicas)
    assert (costs.layers, costs.replicas, costs.memory_limit) == (LAYERS, replicas, None)
