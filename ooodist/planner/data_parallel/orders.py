"""Orders of the backward units of a step, from its costs, and moves of a unit within an order.

An order is a list of unit names; it is legal if it has every unit once and none before a unit
that it needs. :mod:`ooodist.graph.order` imposes one on a traced graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ooodist.errors import UserError
from ooodist.planner.costs import StepCosts


def baseline_order(costs: StepCosts) -> tuple[str, ...]:
    """The baseline: layer after layer from the loss down, each dX before its layer's dW."""
    return tuple(unit.name for unit in costs.backward)


def movable_layers(costs: StepCosts) -> list[list[str]]:
    """The dW units that first-k can defer, by layer, from the input up.

    A layer is the set of dW units that wait for the same dX units. An early part of a weight with
    several uses completes nothing, so it belongs to none; nor does a dW that others need.
    """
    needed = {name for unit in costs.backward for name in unit.needs}
    waits_for: dict[str, int] = {}  # how far down the dX path a unit's last input is
    path = 0
    layers: dict[int, list[str]] = {}
    for unit in costs.backward:
        if unit.kind == "dX":
            path += 1
            waits_for[unit.name] = path
            continue
        place = max((waits_for[name] for name in unit.needs), default=0)
        waits_for[unit.name] = place
        if unit.weights and unit.name not in needed:
            layers.setdefault(place, []).append(unit.name)
    return [layers[place] for place in sorted(layers, reverse=True)]


def first_k_order(costs: StepCosts, k: int) -> tuple[str, ...]:
    """Makes the reverse first-k order of described units; see :func:`first_k`."""
    return first_k(baseline_order(costs), movable_layers(costs), k)


def first_k(units: Sequence[str], layers: Sequence[Sequence[str]], k: int) -> tuple[str, ...]:
    """Makes the reverse first-k order: the dW of the first k layers last, the first layer's first.

    Args:
        units: in baseline order.
        layers: the dW units that can be deferred, by layer, from the input up.
        k: from 0 (baseline order) to the number of ``layers``.

    Raises:
        UserError: k is out of range.

    Source: Oh et al., EuroSys 2022, section 5.1 ("reverse first-k scheduling").
    """
    if not 0 <= k <= len(layers):
        raise UserError(
            f"order: first_k has k = {k}, but this model has {len(layers)} layers whose weight "
            f"gradient can be moved; choose k from 0 to {len(layers)}"
        )
    late = [name for layer in layers[:k] for name in layer]
    deferred = set(late)
    return (*(name for name in units if name not in deferred), *late)


def is_legal(costs: StepCosts, order: Sequence[str]) -> bool:
    """Whether an order has each backward unit once, and after all that it needs."""
    if sorted(order) != sorted(unit.name for unit in costs.backward):
        return False
    place = {name: index for index, name in enumerate(order)}
    return all(place[need] < place[unit.name] for unit in costs.backward for need in unit.needs)


class Moves:
    """Finds where a unit of an order can be moved.

    Attributes:
        movable: names of the dW units; the dX path stays as it is.
    """

    def __init__(self, costs: StepCosts) -> None:
        self.movable = tuple(unit.name for unit in costs.backward if unit.kind == "dW")
        self._needs = {unit.name: set(unit.needs) for unit in costs.backward}
        self._needed_by: dict[str, set[str]] = {name: set() for name in self._needs}
        for name, needs in self._needs.items():
            for needed in needs:
                self._needed_by[needed].add(name)

    def room(self, order: Sequence[str], name: str) -> range:
        """The places where a unit may be reinserted once it is taken out; never empty."""
        others = [other for other in order if other != name]
        first, last = 0, len(others)
        for index, other in enumerate(others):
            if other in self._needs[name]:
                first = index + 1
            elif other in self._needed_by[name]:
                last = index
                break
        return range(first, last + 1)


def moved(items: Iterable[str], name: str, place: int) -> tuple[str, ...]:
    """The items with one of them moved to ``place``."""
    others = [item for item in items if item != name]
    others.insert(place, name)
    return tuple(others)


def num_deferred(costs: StepCosts, order: Sequence[str] | None) -> int:
    """How many units run after one that follows them in baseline order (0 for None)."""
    if order is None:
        return 0
    baseline = {unit.name: index for index, unit in enumerate(costs.backward)}
    deferred, latest = 0, -1
    for name in order:
        if baseline[name] < latest:
            deferred += 1
        latest = max(latest, baseline[name])
    return deferred
