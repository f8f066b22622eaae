"""Orders of described units: legal, and the same as those of a traced graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.errors import UserError
from ooodist.planner.costs import StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel.orders import (
    Moves,
    baseline_order,
    first_k_order,
    is_legal,
    movable_layers,
    moved,
    num_deferred,
)
from tests.graph.test_order import chain
from tests.graph.test_order import first_k_order as traced_first_k_order
from tests.planner import instances


def three_layers() -> StepCosts:
    """As in the docstring of ooodist.graph.order; layer 2 has a bias in a unit of its own."""
    backward = (
        UnitCost("dX3", "dX", 1.0),
        UnitCost("dW3", "dW", 1.0, ("dX3",), ("w3",)),
        UnitCost("dX2", "dX", 1.0, ("dX3",)),
        UnitCost("dW2", "dW", 1.0, ("dX2",), ("w2",)),
        UnitCost("db2", "dW", 1.0, ("dX2",), ("b2",)),
        UnitCost("dW3@2", "dW", 1.0, ("dX2",)),
        UnitCost("dX1", "dX", 1.0, ("dX2",)),
        UnitCost("dW1", "dW", 1.0, ("dX1",), ("w1",)),
    )
    weights = tuple(WeightCost(name, 4) for name in ("w1", "w2", "b2", "w3"))
    return StepCosts((), backward, weights)


def test_first_k_defers_the_first_layers() -> None:
    costs = three_layers()
    assert movable_layers(costs) == [["dW1"], ["dW2", "db2"], ["dW3"]]
    assert first_k_order(costs, 0) == baseline_order(costs)
    expected = ("dX3", "dW3", "dX2", "dW3@2", "dX1", "dW1", "dW2", "db2")
    assert first_k_order(costs, 2) == expected  # the early part stays where it is
    with pytest.raises(UserError, match="k = 4, but this model has 3 layers"):
        first_k_order(costs, 4)


@pytest.mark.parametrize("k", range(5))
def test_first_k_is_that_of_a_traced_graph(k: int) -> None:
    units = chain(4)
    backward = tuple(
        UnitCost(unit.name, unit.kind, 1.0, tuple(sorted(unit.needs)), unit.variables)
        for unit in units
    )
    names = [name for unit in units for name in unit.variables]
    costs = StepCosts((), backward, tuple(WeightCost(name, 4) for name in names))
    assert first_k_order(costs, k) == traced_first_k_order(units, k)


@given(st.data())
def test_moves_keep_orders_legal(data: DataObject) -> None:
    costs = data.draw(instances.step_costs())
    order = data.draw(instances.orders(costs))
    moves = Moves(costs)
    for name in moves.movable:
        room = moves.room(order, name)
        allowed = [p for p in range(len(order)) if is_legal(costs, moved(order, name, p))]
        assert list(room) == allowed
        order = moved(order, name, data.draw(st.sampled_from(room)))
    assert is_legal(costs, order)


def test_what_is_not_legal() -> None:
    costs = three_layers()
    order = baseline_order(costs)
    assert is_legal(costs, order)
    assert not is_legal(costs, order[1:])
    assert not is_legal(costs, (*order, "dW1"))
    assert not is_legal(costs, (order[1], order[0], *order[2:]))


def test_deferred_units_are_counted() -> None:
    costs = three_layers()
    assert num_deferred(costs, None) == num_deferred(costs, baseline_order(costs)) == 0
    assert num_deferred(costs, first_k_order(costs, 2)) == 2  # the dW of layer 2
    assert num_deferred(costs, moved(baseline_order(costs), "dW3", 7)) == 1
