"""Small things that go together, as in the buckets of an exchange."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def divide(
    items: Iterable[T],
    key_of: Callable[[T], Hashable],
    bytes_of: Callable[[T], int],
    most_bytes: int,
) -> list[list[T]]:
    """Divides items into groups, each of items of one key, in their order.

    Args:
        items: what is divided.
        key_of: what must be the same for all items of a group.
        bytes_of: the size of an item.
        most_bytes: the size of a group, unless a single item is larger.

    Returns:
        the groups, in the order of their first items.
    """
    groups: list[list[T]] = []
    latest: dict[Hashable, tuple[list[T], int]] = {}  # by key: a group, and its bytes
    for item in items:
        key, num_bytes = key_of(item), bytes_of(item)
        group, total = latest.get(key, ([], 0))
        if not group or total + num_bytes > most_bytes:
            group, total = [], 0
            groups.append(group)
        group.append(item)
        latest[key] = group, total + num_bytes
    return groups
