"""How much the planner searches; what it finds is in test_search.py."""

from __future__ import annotations

import pytest

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.planner import Limits, Planner
from tests.planner.chains import uneven_costs


@pytest.mark.parametrize(("by_urgency", "power"), [(False, 1.75), (True, 2.65)])
def test_random_changes_are_fewer_for_more_layers(by_urgency: bool, power: float) -> None:
    """All that is simulated at random is about the same work, and less where one plan is much."""
    network = Network("any", 8, by_urgency=by_urgency)
    counts = [
        Planner(uneven_costs(layers), network, Limits()).evaluations
        for layers in (50, 240, 360, 600, 1200)
    ]
    assert counts[0] == Limits().evaluations > counts[1]
    assert counts[2] == pytest.approx(counts[1] * 240 / 360, rel=0.01)
    assert counts[4] == pytest.approx(counts[3] / 2**power, rel=0.01)
