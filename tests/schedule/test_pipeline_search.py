"""Searched pipeline schedules, and the fast evaluation that the search rests on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.schedule.actions import Action, Schedule
from ooodist.schedule.pipeline import gpipe, one_forward_one_backward, zero_bubble_h1
from ooodist.schedule.pipeline_check import check
from ooodist.schedule.pipeline_costs import PipelineCosts, StageCost, equal_stages
from ooodist.schedule.pipeline_evaluate import Evaluator
from ooodist.schedule.pipeline_search import auto, named_schedules, split
from ooodist.schedule.pipeline_simulate import peak_bytes, simulate_pipeline
from tests.schedule.pipelines import pipelines, stage_costs

PLACEMENTS = st.sampled_from([(0,), (0, 1), (0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0)])


@settings(deadline=None)
@given(pipelines())
def test_the_fast_evaluation_says_what_the_simulation_says(
    pipeline: tuple[Schedule, PipelineCosts],
) -> None:
    schedule, costs = split(pipeline[0]), pipeline[1]
    evaluator = Evaluator(schedule.rank_of, schedule.microbatches, costs)
    orders = evaluator.orders_of(schedule)
    timeline = simulate_pipeline(schedule, costs)
    assert evaluator.makespan(orders) == timeline.makespan
    assert evaluator.schedule_of(orders).actions == schedule.actions
    assert evaluator.size == sum(map(len, orders))
    for rank, order in enumerate(orders):
        peak = timeline.peak_bytes[rank]
        for limit in {peak, max(0, peak - 1)}:
            limited = replace(costs, memory_limit=limit)
            again = Evaluator(schedule.rank_of, schedule.microbatches, limited)
            assert again.fits(rank, order) == (peak <= limit)


def test_ranks_that_wait_for_each_other_never_end() -> None:
    evaluator = Evaluator((0, 1), 2, equal_stages(2))
    orders = evaluator.orders_of(split(gpipe(2, 2)))
    assert evaluator.makespan(orders) == 9 - 1  # B is sent before W
    orders[0] = [0, 2, 4, 1, 3, 5]  # F0 B0 W0 F1 B1 W1
    orders[1] = [6, 7, 8, 9, 10, 11]  # F0 F1 B0 B1 W0 W1
    assert evaluator.makespan(orders) == math.inf


@settings(deadline=None)
@given(st.permutations(range(9)), st.data())
def test_a_move_that_keeps_the_order_is_known(order: list[int], data: st.DataObject) -> None:
    """Of three micro-batches on one stage; only orders with F before B before W are moved in."""
    evaluator = Evaluator((0,), 3, equal_stages(1))

    def in_order(numbers: list[int]) -> bool:
        return all(numbers.index(m) < numbers.index(3 + m) < numbers.index(6 + m) for m in range(3))

    order = sorted(order, key=lambda number: (order.index(number % 3), number))
    assert in_order(order)
    at, to = (data.draw(st.integers(0, 8)) for _ in range(2))
    order.insert(to, order.pop(at))
    assert evaluator.keeps_order(order, to, at) == in_order(order)


def test_split_sends_before_w() -> None:
    schedule = split(one_forward_one_backward(2, 1))
    assert schedule.actions == (
        (Action(0, "F", 0), Action(0, "B", 0), Action(0, "W", 0)),
        (Action(1, "F", 0), Action(1, "B", 0), Action(1, "W", 0)),
    )
    costs = equal_stages(2)
    assert simulate_pipeline(schedule, costs).makespan == 5
    assert simulate_pipeline(one_forward_one_backward(2, 1), costs).makespan == 6


@settings(deadline=None, max_examples=30)
@given(st.data(), PLACEMENTS, st.integers(1, 6))
def test_none_with_a_name_that_fits_is_faster(
    data: st.DataObject, rank_of: tuple[int, ...], microbatches: int
) -> None:
    costs = data.draw(stage_costs(len(rank_of)))
    most = max(max(peak_bytes(s, costs)) for s in named_schedules(rank_of, microbatches, costs))
    costs = replace(costs, memory_limit=data.draw(st.integers(0, most)))
    try:
        found = auto(rank_of, microbatches, costs)
    except UserError:
        with pytest.raises(UserError, match="too low for a single micro-batch"):
            auto(rank_of, 1, costs)
        return
    check(found, costs)
    assert found.name == "auto"
    seconds = simulate_pipeline(found, costs).makespan
    unlimited = replace(costs, memory_limit=None)
    for schedule in named_schedules(rank_of, microbatches, unlimited):
        if max(peak_bytes(schedule, costs)) <= (costs.memory_limit or 0):
            assert seconds <= simulate_pipeline(schedule, costs).makespan


def all_orders(stage: int, microbatches: int) -> Iterator[tuple[Action, ...]]:
    """Of one stage; those that differ only in which micro-batch is which are as long."""

    def words(counts: tuple[int, int, int], word: str) -> Iterator[str]:
        if len(word) == 3 * microbatches:
            yield word
        for number, kind in enumerate("FBW"):
            most = microbatches if number == 0 else counts[number - 1]
            if counts[number] < most:
                more = tuple(c + (at == number) for at, c in enumerate(counts))
                yield from words(more, word + kind)  # type: ignore[arg-type]

    for word in words((0, 0, 0), ""):
        yield tuple(Action(stage, kind, word[:at].count(kind)) for at, kind in enumerate(word))


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("seconds", [(1, 1, 1), (1, 1.5, 0.5), (2, 3, 2.5)])
def test_is_within_a_hundredth_of_the_best_of_all_orders(
    ranks: int, microbatches: int, limit: int, seconds: tuple[float, float, float]
) -> None:
    stages = tuple(
        StageCost(*(s * (1 + rank / 4) for s in seconds), weight_bytes=1, send_seconds=0.25)
        for rank in range(ranks)
    )
    costs = PipelineCosts(stages, memory_limit=limit)
    rank_of = tuple(range(ranks))
    evaluator = Evaluator(rank_of, microbatches, costs)
    orders = [
        [
            order
            for order in evaluator.orders_of(
                Schedule("x", rank_of, microbatches, tuple(all_orders(stage, microbatches)))
            )
            if evaluator.fits(stage, order)
        ]
        for stage in range(ranks)
    ]
    best = min(evaluator.makespan(those) for those in itertools.product(*orders))
    found = simulate_pipeline(auto(rank_of, microbatches, costs), costs).makespan
    assert best <= found <= 1.01 * best


def test_a_fifth_faster_than_1f1b_with_its_memory() -> None:
    costs = replace(equal_stages(8), memory_limit=8)
    plain = simulate_pipeline(one_forward_one_backward(8, 16), costs).makespan
    found = auto(tuple(range(8)), 16, costs)
    check(found, costs)
    assert plain / simulate_pipeline(found, costs).makespan >= 1.2


def test_the_same_costs_give_the_same_schedule() -> None:
    costs = PipelineCosts((StageCost(1, 1.3, 0.6), StageCost(0.7, 1.1, 1.2, send_back_seconds=0.2)))
    assert auto((0, 1), 5, costs) == auto((0, 1), 5, costs)


def test_what_fits_no_named_schedule_is_still_found() -> None:
    """One micro-batch at a time, where ZB-H1 keeps two."""
    costs = replace(equal_stages(2), memory_limit=1)
    assert not any(
        max(peak_bytes(s, costs)) <= 1
        for s in [zero_bubble_h1(2, 4), one_forward_one_backward(2, 4)]
    )
    check(auto((0, 1), 4, costs), costs)


def test_too_little_memory() -> None:
    with pytest.raises(UserError, match="too low for a single micro-batch"):
        auto((0, 1), 4, replace(equal_stages(2), memory_limit=0))
