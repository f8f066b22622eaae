"""How much the planner searches; what it finds is in test_search.py."""

from __future__ import annotations

import pytest

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.planner import Limits, Planner
from tests.planner.chains import uneven_costs


def test_random_changes_are_fewer_for_more_layers() -> None:
    """All that is simulated at random is about the same work, however many layers there are."""
    network = Network("any", 8)
    counts = [
        Planner(uneven_costs(layers), network, Limits()).evaluations for layers in (50, 400, 800)
    ]
    assert counts[0] == Limits().evaluations > counts[1]
    assert counts[2] == pytest.approx(counts[1] / 2, rel=0.01)
