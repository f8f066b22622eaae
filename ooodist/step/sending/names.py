"""Chooses the names under which an engine knows the exchanges of gradients.

On most engines a name tells what the exchange carries. But BytePS keeps memory for each name, on
its servers and until the job ends, and every selection of tensors and every plan makes other
exchanges. There exchanges have numbers instead, which the next selection reuses: the largest
exchange has the first number, the next one the second, and so on. The exchanges of a number then
have similar sizes, and all numbers together cost little more than the whole model, however many
selections there are::

    all tensors   dense/kernel 9 MB: 0   conv/kernel 4 MB: 1   conv/bias+3 1 MB: 2
    the next      conv/kernel  4 MB: 0   dense/bias  8 kB: 1
"""

from __future__ import annotations

from collections.abc import Sequence


class ExchangeNames:
    """Names lists of exchanges: different lists differently, and alike on all ranks.

    A step may have several lists (one for each tape), which are in flight together. Another object
    of this class may use the same names: exchanges of one name run one after the other.

    Args:
        are_numbers: use numbers, which are reused for tensors of other sizes.
    """

    def __init__(self, are_numbers: bool) -> None:
        self.are_numbers = are_numbers
        self._first_places: dict[tuple[str, ...], int] = {}
        self._num_places = 0

    def first_place(self, names: Sequence[str]) -> int:
        """The number of the first place of a list of exchanges; a list keeps its places."""
        listed = tuple(names)
        if listed not in self._first_places:
            self._first_places[listed] = self._num_places
            self._num_places += len(listed)
        return self._first_places[listed]

    def name_all(self, names: Sequence[str], num_bytes: Sequence[int]) -> list[str]:
        """The name that the engine gets for each exchange of a list, in the list's order.

        Args:
            names: what each exchange carries; no two in a list are equal.
            num_bytes: the bytes of each exchange.
        """
        if not self.are_numbers:
            return list(names)
        largest_first = sorted(range(len(names)), key=lambda index: -num_bytes[index])
        first = self.first_place(names)
        numbers = {index: first + rank for rank, index in enumerate(largest_first)}
        return [f"shared.{numbers[index]}" for index in range(len(names))]
