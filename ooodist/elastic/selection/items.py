"""The items that can be selected and their costs: groups of weights, and the dX path to them.

For a chain of four layers, from the output down::

    loss -> dX 4 -> dX 3 -> dX 2 -> dX 1        needs of item 2: dX 4, dX 3, dX 2
             |       |       |       |          seconds of item 2: its dW and its update
            dW 4    dW 3    dW 2    dW 1

If items 2 and 4 are selected, only dX 4, dX 3, dX 2, dW 4 and dW 2 are computed: each dX is paid
for once, however many items need it. In a network with branches, an item needs only the dX of its
own branch.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Item:
    """Weights that are selected together: those whose gradients one backward unit completes.

    Attributes:
        name: the item's unique name.
        weights: the names of the weights.
        seconds: seconds of their updates, and of their gradients unless a dX unit computes those.
        needs: the names of the dX units that must run for the item.
    """

    name: str
    weights: tuple[str, ...]
    seconds: float
    needs: frozenset[str]


@dataclass(frozen=True)
class Selectable:
    """The items of a model, with the costs of a step.

    Attributes:
        items: the items, from the output to the input.
        path_seconds: seconds of each dX unit, by name.
        fixed_seconds: seconds of the step without any of these: forward pass, loss, launch.
    """

    items: tuple[Item, ...]
    path_seconds: Mapping[str, float]
    fixed_seconds: float = 0.0

    def seconds(self, selected: Collection[int]) -> float:
        """The seconds of a step that trains the items with these numbers.

        Independent of their order to the last bit, because all ranks compare their results.
        """
        own = math.fsum(self.items[number].seconds for number in selected)
        return self.fixed_seconds + own + self.seconds_of_units(self.units(selected))

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The dX units that each item needs, as a bit mask: 1 is the first of ``path_seconds``."""
        bit = {name: 1 << number for number, name in enumerate(self.path_seconds)}
        return tuple(sum(map(bit.__getitem__, item.needs)) for item in self.items)

    @cached_property
    def _seconds_of_unit(self) -> tuple[float, ...]:
        return tuple(self.path_seconds.values())

    def units(self, selected: Iterable[int]) -> int:
        """The dX units that these items need, as a bit mask."""
        return functools.reduce(operator.or_, map(self.needs.__getitem__, selected), 0)

    def seconds_of_units(self, units: int) -> float:
        """The seconds of the dX units in a bit mask."""
        return math.fsum(self._seconds_of_unit[bit.bit_length() - 1] for bit in bits_of(units))

    @property
    def full_seconds(self) -> float:
        """Seconds of a step with all items."""
        return self.seconds(range(len(self.items)))

    @property
    def head(self) -> tuple[int, ...]:
        """The items next to the loss, which are always trained: those that need the fewest dX."""
        needs = [item.needs for item in self.items]
        least = [
            number
            for number, own in enumerate(needs)
            if own and not any(other and other < own for other in needs)
        ]
        return tuple(least) or tuple(range(min(1, len(self.items))))

    def numbers(self, weights: Collection[str]) -> frozenset[int]:
        """The numbers of the items that contain any of these weights."""
        return frozenset(
            number
            for number, item in enumerate(self.items)
            if not set(weights).isdisjoint(item.weights)
        )

    def weights(self, selected: Collection[int]) -> frozenset[str]:
        """The names of the weights of these items."""
        return frozenset(name for number in selected for name in self.items[number].weights)


def bits_of(units: int) -> Iterator[int]:
    """The bits that are set, from the lowest up."""
    while units:
        lowest = units & -units
        yield lowest
        units ^= lowest
