"""Items: what a selection costs, and which items are next to the loss."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.selection.items import Item, Selectable


def item(name: str, *needs: str, seconds: float = 1.0) -> Item:
    return Item(name, (f"{name}/kernel", f"{name}/bias"), seconds, frozenset(needs))


def choice_of(*items: Item, fixed: float = 0.0) -> Selectable:
    path = frozenset().union(*(item.needs for item in items))
    return Selectable(items, dict.fromkeys(sorted(path), 10.0), fixed)


def heads(choice: Selectable) -> list[str]:
    return [choice.items[number].name for number in choice.head]


CHAIN = choice_of(item("d", "4"), item("c", "4", "3"), item("b", "4", "3", "2"), fixed=100.0)


@pytest.mark.parametrize(
    ("selected", "seconds"),
    [((), 100), ((0,), 111), ((2,), 131), ((0, 2), 132), ((0, 1, 2), 133)],
)
def test_a_path_is_paid_for_once(selected: Sequence[int], seconds: float) -> None:
    assert CHAIN.seconds(selected) == seconds
    assert CHAIN.full_seconds == 133


def test_a_branch_does_not_pay_for_the_other() -> None:
    choice = choice_of(item("top", "t"), item("left", "t", "l"), item("right", "t", "r"))
    assert choice.seconds([1]) == choice.seconds([2]) == 21
    assert choice.seconds([1, 2]) == 32


@given(st.sets(st.integers(0, 2)), st.sets(st.integers(0, 2)))
def test_a_selection_costs_at_least_what_its_parts_cost(one: set[int], other: set[int]) -> None:
    both = CHAIN.seconds(one | other)
    assert max(CHAIN.seconds(one), CHAIN.seconds(other)) <= both
    assert both <= CHAIN.seconds(one) + CHAIN.seconds(other) - CHAIN.fixed_seconds


@given(st.lists(st.integers(0, 6), min_size=1), st.randoms(use_true_random=False))
def test_the_order_of_the_selected_does_not_count(
    selected: list[int], generator: random.Random
) -> None:
    items = [Item(str(n), (), generator.random(), frozenset({"a", f"b{n}"})) for n in range(7)]
    path = {name: generator.random() for name in ("a", *(f"b{n}" for n in range(7)))}
    choice = Selectable(tuple(items), path, generator.random())
    once = sorted(set(selected))
    shuffled = generator.sample(once, len(once))
    assert choice.seconds(shuffled) == choice.seconds(once) == choice.seconds(frozenset(once))


PRINTS_SECONDS = """
import random
from ooodist.elastic.selection.items import Item, Selectable

generator = random.Random(0)
names = [f"dX {number}" for number in range(50)]
items = [Item(f"{n}", (), generator.random(), frozenset(names[:n + 1])) for n in range(50)]
choice = Selectable(tuple(items), {name: generator.random() for name in names})
print([choice.seconds(generator.sample(range(50), 20)).hex() for _ in range(20)])
"""


def test_all_processes_find_the_same_seconds() -> None:
    """To the last bit, though each has another order of what is in a set of names."""

    def printed(seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", PRINTS_SECONDS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    first, *others = map(printed, range(1, 6))
    assert first.count("0x1") == 20
    assert others == [first] * 4


def test_the_head_of_a_chain_is_its_last_layer() -> None:
    assert heads(CHAIN) == ["d"]


def test_each_output_has_a_head() -> None:
    choice = choice_of(
        item("out a", "a"),
        item("out b", "b"),
        item("shared", "a", "b", "s"),
        item("deep", "a", "x"),
    )
    assert heads(choice) == ["out a", "out b"]


def test_a_tied_weight_is_no_head_if_its_gradient_is_complete_at_the_other_end() -> None:
    """The embedding is the output layer as well: only the norm in front of it needs little dX."""
    choice = choice_of(
        item("norm", "logits"),
        item("block", "logits", "norm", "block"),
        item("embedding", "logits", "norm", "block", "lookup"),
    )
    assert heads(choice) == ["norm"]


def test_items_that_need_the_same_are_heads_together() -> None:
    assert heads(choice_of(item("kernel", "x"), item("scale", "x"), item("below", "x", "y"))) == [
        "kernel",
        "scale",
    ]


def test_what_needs_nothing_of_the_loss_is_no_head() -> None:
    assert heads(choice_of(item("regularized"), item("out", "x"), item("below", "x", "y"))) == [
        "out"
    ]


def test_if_nothing_needs_the_loss_the_first_item_is_the_head() -> None:
    assert heads(choice_of(item("one"), item("two"))) == ["one"]
    assert Selectable((), {}).head == ()


def test_weights_and_items_are_found_from_each_other() -> None:
    assert CHAIN.numbers(["c/bias"]) == {1}
    assert CHAIN.numbers(["c/bias", "b/kernel", "unknown"]) == {1, 2}
    assert CHAIN.weights([1]) == {"c/kernel", "c/bias"}
    for selected in ([], [0], [0, 2], [0, 1, 2]):
        assert CHAIN.numbers(CHAIN.weights(selected)) == set(selected)
