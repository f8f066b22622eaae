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

from collections.abc import Collection, Mapping
from dataclasses import dataclass


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
        """Of a step with these items (their numbers)."""
        needed = frozenset[str]().union(*(self.items[number].needs for number in selected))
        own = sum(self.items[number].seconds for number in selected)
        return self.fixed_seconds + own + sum(self.path_seconds[name] for name in needed)

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
