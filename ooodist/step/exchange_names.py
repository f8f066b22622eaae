"""What an engine knows the exchanges of gradients by.

On most engines that is what they carry. But BytePS keeps memory for each name, on its servers and
until the job ends, and every selection of tensors and every plan makes other exchanges. So there
exchanges have numbers, which the next selection uses again: the largest exchange has the first
number, the next one the second, and so on. The exchanges of a number are then of similar sizes, and
however many selections there are, all numbers together cost little more than the whole model::

    all tensors   dense/kernel 9 MB: 0   conv/kernel 4 MB: 1   conv/bias+3 1 MB: 2
    the next      conv/kernel  4 MB: 0   dense/bias  8 kB: 1
"""

from __future__ import annotations

from collections.abc import Sequence


class ExchangeNames:
    """Names for lists of exchanges: unlike ones for unlike lists, the same ones on all ranks.

    A step may have several lists (one for each tape), which are in flight together. Those of
    another object may have the same names: of these, one runs after the other.

    Args:
        are_numbers: names are used again, for tensors of other sizes.
    """

    def __init__(self, are_numbers: bool) -> None:
        self.are_numbers = are_numbers
        self._first_places: dict[tuple[str, ...], int] = {}
        self._num_places = 0

    def first_place(self, names: Sequence[str]) -> int:
        """The number of the first place of a list of exchanges; the same whenever it comes."""
        listed = tuple(names)
        if listed not in self._first_places:
            self._first_places[listed] = self._num_places
            self._num_places += len(listed)
        return self._first_places[listed]

    def name_all(self, names: Sequence[str], num_bytes: Sequence[int]) -> list[str]:
        """What the engine is to know each exchange of a list by, in its order.

        Args:
            names: what each carries; no two of a list are equal.
            num_bytes: of each.
        """
        if not self.are_numbers:
            return list(names)
        largest_first = sorted(range(len(names)), key=lambda index: -num_bytes[index])
        first = self.first_place(names)
        numbers = {index: first + rank for rank, index in enumerate(largest_first)}
        return [f"shared.{numbers[index]}" for index in range(len(names))]
