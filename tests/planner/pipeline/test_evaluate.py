"""The fast evaluation of orders that the search rests on."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.actions import Action, Schedule, trained_from
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages, forward_only
from ooodist.planner.pipeline.evaluate import Evaluator
from ooodist.planner.pipeline.named.schedules import gpipe, zero_bubble_v
from ooodist.planner.pipeline.search import split
from ooodist.planner.pipeline.simulate import peak_bytes, pipeline_period, simulate_pipeline
from tests.planner.pipelines import partly_trained, pipelines


@given(pipelines())
def test_the_fast_evaluation_says_what_the_simulation_says(
    pipeline: tuple[Schedule, PipelineCosts],
) -> None:
    schedule, costs = split(pipeline[0]), pipeline[1]
    evaluator = Evaluator(schedule.rank_of, schedule.microbatches, costs)
    orders = evaluator.orders_of(schedule)
    timeline = simulate_pipeline(schedule, costs)
    assert evaluator.step_seconds(orders) == timeline.step_seconds
    assert evaluator.period(orders) == pipeline_period(schedule, costs)
    assert evaluator.least_seconds <= timeline.step_seconds * (1 + 1e-9)
    assert evaluator.schedule_of(orders).actions == schedule.actions
    assert evaluator.size == sum(map(len, orders))
    for rank, order in enumerate(orders):
        peak = timeline.peak_bytes[rank]
        for limit in {peak, max(0, peak - 1)}:
            limited = replace(costs, memory_limit=limit)
            again = Evaluator(schedule.rank_of, schedule.microbatches, limited)
            assert again.fits(rank, order) == (peak <= limit)


@given(pipelines(), st.floats(0.5, 1.5))
def test_what_takes_too_long_may_be_given_up(
    pipeline: tuple[Schedule, PipelineCosts], share: float
) -> None:
    schedule, costs = split(pipeline[0]), pipeline[1]
    costs = replace(costs, stages=(replace(costs.stages[0], update=1.25), *costs.stages[1:]))
    evaluator = Evaluator(schedule.rank_of, schedule.microbatches, costs)
    orders = evaluator.orders_of(schedule)
    seconds = simulate_pipeline(schedule, costs).step_seconds
    assert evaluator.step_seconds(orders, seconds) == seconds
    within = evaluator.step_seconds(orders, seconds * share)
    assert within in (seconds, math.inf)
    if share >= 1:
        assert within == seconds


def test_ranks_that_wait_for_each_other_never_end() -> None:
    evaluator = Evaluator((0, 1), 2, equal_stages(2))
    orders = evaluator.orders_of(split(gpipe(2, 2)))
    assert evaluator.step_seconds(orders) == 9 - 1  # I is sent before W
    orders[0] = [0, 2, 4, 1, 3, 5]  # F0 I0 W0 F1 I1 W1
    orders[1] = [6, 7, 8, 9, 10, 11]  # F0 F1 I0 I1 W0 W1
    assert evaluator.step_seconds(orders) == math.inf


@given(partly_trained())
def test_so_it_does_where_the_first_stages_only_run_forward(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    schedule = split(pipeline[1])
    costs = forward_only(pipeline[2], schedule.first_trained)
    evaluator = Evaluator(schedule.rank_of, schedule.microbatches, costs)
    orders = evaluator.orders_of(schedule)
    seconds = simulate_pipeline(schedule, costs).step_seconds
    assert evaluator.step_seconds(orders) == seconds
    assert evaluator.period(orders) == pipeline_period(schedule, costs)
    assert evaluator.least_seconds <= seconds * (1 + 1e-9)
    assert evaluator.step_seconds(orders, seconds) == seconds
    assert evaluator.schedule_of(orders).actions == schedule.actions
    for peak, rank in zip(peak_bytes(schedule, costs), range(len(orders)), strict=True):
        limited = replace(costs, memory_limit=peak)
        assert Evaluator(schedule.rank_of, schedule.microbatches, limited).fits(rank, orders[rank])


def test_the_update_of_a_rank_does_not_wait_for_a_way_back_that_ends_before_it() -> None:
    """Stages 2 and 3 train: while stage 2 runs I, rank 0 can update what stage 3 has."""
    stages = [StageCost(0, 0, 0) for _ in range(4)]
    stages[2] = replace(stages[2], input_gradient=1.0)
    stages[3] = replace(stages[3], update=1.0)
    schedule = trained_from(split(zero_bubble_v(2, 1)), 2)
    costs = forward_only(PipelineCosts(tuple(stages)), 2)
    assert simulate_pipeline(schedule, costs).step_seconds == 1
    assert Evaluator(schedule.rank_of, 1, costs).least_seconds == 1


@given(st.permutations(range(9)), st.data())
def test_a_move_that_keeps_the_order_is_known(order: list[int], data: st.DataObject) -> None:
    """Of three micro-batches on one stage; only orders with F before I before W, and with the
    micro-batches in turn, are moved in."""
    evaluator = Evaluator((0,), 3, equal_stages(1))

    def in_order(numbers: list[int]) -> bool:
        return numbers == evaluator.in_turn(numbers) and all(
            numbers.index(m) < numbers.index(3 + m) < numbers.index(6 + m) for m in range(3)
        )

    order = evaluator.in_turn(sorted(order, key=lambda number: (order.index(number % 3), number)))
    assert in_order(order)
    at, to = (data.draw(st.integers(0, 8)) for _ in range(2))
    order.insert(to, order.pop(at))
    assert evaluator.keeps_order(order, to, at) == in_order(order)


@given(partly_trained())
def test_urgent_actions_follow_the_one_before_them_at_once(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    """They are in the order of a critical path, the last one first."""
    _, schedule, costs = pipeline
    schedule = split(schedule)
    costs = forward_only(costs, schedule.first_trained)
    stages = tuple(
        replace(each, forward=each.forward + 1, exchange=0.0, update=0.0) for each in costs.stages
    )
    costs = replace(costs, stages=stages)
    evaluator = Evaluator(schedule.rank_of, schedule.microbatches, costs)
    orders = evaluator.orders_of(schedule)
    runs = simulate_pipeline(schedule, costs).runs
    urgent = evaluator.urgent(orders)
    assert len(set(urgent)) == len(urgent)
    for rank, position in urgent:
        assert runs[rank][position].start == runs[rank][position - 1].end
    starts = [runs[rank][position].start for rank, position in urgent]
    assert starts == sorted(starts, reverse=True)


@given(pipelines(), st.data())
def test_what_frees_memory_moves_to_where_it_is_lacking(
    pipeline: tuple[Schedule, PipelineCosts], data: st.DataObject
) -> None:
    schedule, costs = split(pipeline[0]), pipeline[1]
    limit = data.draw(st.integers(0, max(peak_bytes(schedule, costs))))
    evaluator = Evaluator(
        schedule.rank_of, schedule.microbatches, replace(costs, memory_limit=limit)
    )
    for rank, order in enumerate(evaluator.orders_of(schedule)):
        made = order.copy()
        assert evaluator.make_fit(rank, made) == evaluator.fits(rank, made)
        assert sorted(made) == sorted(order)
        own = evaluator.schedule_of([made]).actions[0]
        for stage, kind, number in own:
            before = {"F": [], "I": ["F"], "W": ["F", "I"]}[kind]
            at = own.index(Action(stage, kind, number))
            assert all(own.index(Action(stage, each, number)) < at for each in before)
        if evaluator.fits(rank, order):
            assert made == order


def test_a_forward_pass_waits_for_the_weight_gradient_that_frees_memory() -> None:
    evaluator = Evaluator((0,), 2, replace(equal_stages(1), memory_limit=1))
    order = [0, 1, 2, 3, 4, 5]  # F0 F1 I0 I1 W0 W1
    assert not evaluator.make_fit(0, order)  # only I0 could come first, and it frees nothing
    order = [0, 2, 1, 3, 4, 5]
    assert evaluator.make_fit(0, order)
    assert order == [0, 2, 4, 1, 3, 5]
