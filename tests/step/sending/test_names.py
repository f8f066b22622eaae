"""Names of exchanges that are used again: unlike where they must be, and few."""

from __future__ import annotations

import random

from ooodist.step.sending.names import ExchangeNames


def test_the_largest_has_the_first_number() -> None:
    names = ExchangeNames(are_numbers=True)
    assert names.name_all(["a", "b", "c"], [1, 9, 5]) == ["shared.2", "shared.0", "shared.1"]


def test_lists_of_one_step_have_unlike_names_whenever_they_come() -> None:
    names = ExchangeNames(are_numbers=True)
    first, second = ["a", "b"], ["c", "d+1"]
    one, other = names.name_all(first, [1, 2]), names.name_all(second, [2, 1])
    assert len({*one, *other}) == 4
    assert (names.first_place(first), names.first_place(second)) == (0, 2)
    assert names.name_all(first, [1, 2]) == one


def test_other_engines_see_what_is_exchanged() -> None:
    assert ExchangeNames(are_numbers=False).name_all(["a+1", "b"], [2, 1]) == ["a+1", "b"]


def test_any_number_of_selections_needs_little_more_than_all_tensors() -> None:
    """In buckets, too: that the k-th largest is at most 1/k of all bounds it to ln(n) + 1 times."""
    numbers = random.Random(1)
    sizes = [numbers.choice([1, 16, 64, 256]) << 10 for _ in range(100)]
    room: dict[str, int] = {}
    for _ in range(300):
        selected = numbers.sample(sizes, numbers.randint(1, len(sizes)))
        cuts = sorted(numbers.sample(range(1, len(selected) + 1), min(20, len(selected))))
        buckets = [
            sum(selected[a:b]) for a, b in zip([0, *cuts], [*cuts, len(selected)], strict=True)
        ]
        listed = [str(number) for number in range(len(buckets))]
        for name, size in zip(
            ExchangeNames(are_numbers=True).name_all(listed, buckets), buckets, strict=True
        ):
            room[name] = max(room.get(name, 0), size)
    assert sum(room.values()) < 3 * sum(sizes)
