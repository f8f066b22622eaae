"""What can be selected, and what it costs: weights in groups, and the dX path that leads to them.

From the output down, four layers of which the second has a kernel and a bias::

    loss -> dX 4 -> dX 3 -> dX 2 -> dX 1        needs of item 2: dX 4, dX 3, dX 2
             |       |       |       |          seconds of item 2: its dW and its update
            dW 4    dW 3    dW 2    dW 1

If items 2 and 4 are selected, dX 4, dX 3, dX 2, dW 4 and dW 2 are computed, and nothing else: dX
is paid for once, however many items need it. In a network with branches an item needs the dX of its
own branch alone.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Item:
    """Weights that are selected together: the gradients that one backward unit completes.

    Attributes:
        name: of the item, unique.
        weights: their names.
        seconds: of their gradients, where no dX unit makes them anyway, and of their updates.
        needs: names of the dX units that must run for it.
    """

    name: str
    weights: tuple[str, ...]
    seconds: float
    needs: frozenset[str]


@dataclass(frozen=True)
class Selectable:
    """What can be selected in a step.

    Attributes:
        items: from the output to the input.
        path_seconds: of each dX unit, by name.
        fixed_seconds: of the step without any of these: forward pass, loss, launch.
    """

    items: tuple[Item, ...]
    path_seconds: Mapping[str, float]
    fixed_seconds: float = 0.0

    def seconds(self, selected: Collection[int]) -> float:
        """Of a step with these items (their numbers).

        The same to the last bit in whatever order they come: all ranks compare what they found.
        """
        own = math.fsum(self.items[number].seconds for number in selected)
        return self.fixed_seconds + own + self.seconds_of_units(self.units(selected))

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The dX units that each item needs, as bits: 1 is the first of ``path_seconds``."""
        bit = {name: 1 << number for number, name in enumerate(self.path_seconds)}
        return tuple(sum(map(bit.__getitem__, item.needs)) for item in self.items)

    @cached_property
    def _seconds_of_unit(self) -> tuple[float, ...]:
        return tuple(self.path_seconds.values())

    def units(self, selected: Iterable[int]) -> int:
        """The dX units that these items need, as bits."""
        return functools.reduce(operator.or_, map(self.needs.__getitem__, selected), 0)

    def seconds_of_units(self, units: int) -> float:
        """Of dX units, as bits."""
        found = []
        while units:
            lowest = units & -units
            found.append(self._seconds_of_unit[lowest.bit_length() - 1])
            units ^= lowest
        return math.fsum(found)

    @property
    def full_seconds(self) -> float:
        """Of a step with all items."""
        return self.seconds(range(len(self.items)))

    @property
    def head(self) -> tuple[int, ...]:
        """The items next to the loss, which are always trained: those that need the least dX."""
        needs = [item.needs for item in self.items]
        least = [
            number
            for number, own in enumerate(needs)
            if own and not any(other and other < own for other in needs)
        ]
        return tuple(least) or tuple(range(min(1, len(self.items))))

    def numbers(self, weights: Collection[str]) -> frozenset[int]:
        """The items that have one of these weights."""
        return frozenset(
            number
            for number, item in enumerate(self.items)
            if not set(weights).isdisjoint(item.weights)
        )

    def weights(self, selected: Collection[int]) -> frozenset[str]:
        """The weights of these items."""
        return frozenset(name for number in selected for name in self.items[number].weights)
