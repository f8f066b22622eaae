"""Schedules that compute the same numbers, bit by bit, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import keras
import pytest

from ooodist.pipeline.schedule_equivalence import computes_alike, order_dependent_stages
from ooodist.pipeline.stages import Stage, split
from ooodist.planner.pipeline.actions import Action
from ooodist.planner.pipeline.costs import equal_stages
from ooodist.planner.pipeline.named.schedules import (
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble_h1,
    zero_bubble_h2,
)
from ooodist.planner.pipeline.search import auto, named_schedules
from ooodist.planner.pipeline.search import split as split_backward

EACH = [(0,), (1,)]


def shared_stages() -> list[Stage]:
    """Four stages of a call each; the first and the third have the same layer."""
    keras.utils.clear_session()
    shared = keras.layers.Dense(4)
    x = inputs = keras.Input([4])
    for layer in (shared, keras.layers.Dense(4), shared, keras.layers.Dense(4)):
        x = layer(x)
    return split(keras.Model(inputs, x), [range(n, n + 1) for n in range(4)])


def test_stages_that_share_a_layer_on_a_rank_are_together() -> None:
    stages = shared_stages()
    assert order_dependent_stages(stages, (0, 1, 0, 1)) == [(0, 2), (1,), (3,)]
    assert order_dependent_stages(stages, (0, 1, 1, 0)) == [(0,), (3,), (1,), (2,)]


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("rank_of", [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2)])
def test_all_that_is_known_or_found_does_micro_batches_in_turn(
    rank_of: tuple[int, ...], microbatches: int
) -> None:
    costs = equal_stages(len(rank_of), 1.0, 1.1, 0.8)
    each = [(stage,) for stage in range(len(rank_of))]
    found = auto(rank_of, microbatches, costs)
    for other in named_schedules(rank_of, microbatches, costs):
        assert computes_alike(found, other, each), other.name
        assert computes_alike(split_backward(other), other, each), other.name


def test_the_order_of_w_counts_and_that_of_b_does_not() -> None:
    one = zero_bubble_h1(2, 4)
    assert computes_alike(one, zero_bubble_h2(2, 4), EACH)
    assert computes_alike(one, one_forward_one_backward(2, 4), EACH)
    for kind, is_alike in (("F", False), ("W", False), ("I", True)):
        first, second = (Action(1, kind, number) for number in (0, 1))
        swapped = {first: second, second: first}
        actions = tuple(swapped.get(action, action) for action in one.actions[1])
        other = replace(one, actions=(one.actions[0], actions))
        assert computes_alike(one, other, EACH) == is_alike


def test_where_stages_share_a_weight_their_turns_count() -> None:
    one, other = gpipe(2, 4, 2), interleaved(2, 4, 2)
    assert computes_alike(one, other, [(0,), (1,), (2,), (3,)])
    assert not computes_alike(one, other, [(0, 2), (1,), (3,)])
