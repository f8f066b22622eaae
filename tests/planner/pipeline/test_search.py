"""Searched pipeline schedules."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline import search as pipeline_search
from ooodist.planner.pipeline.actions import Action, Schedule, trained_from
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages, forward_only
from ooodist.planner.pipeline.evaluate import Evaluator
from ooodist.planner.pipeline.named import zero_bubble
from ooodist.planner.pipeline.named.schedules import (
    one_forward_one_backward,
    zero_bubble_h1,
)
from ooodist.planner.pipeline.search import (
    auto,
    best_known,
    named_schedules,
    schedules_to_try,
    split,
)
from ooodist.planner.pipeline.simulate import (
    SAME,
    peak_bytes,
    pipeline_period,
    simulate_pipeline,
)
from tests.planner.exact import Exact
from tests.planner.pipelines import EIGHTHS, stage_costs
from tests.processor_time import fastest
from tests.thorough import few

PLACEMENTS = st.sampled_from([(0,), (0, 1), (0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0)])


def test_split_sends_before_w() -> None:
    schedule = split(one_forward_one_backward(2, 1))
    assert schedule.actions == (
        (Action(0, "F", 0), Action(0, "I", 0), Action(0, "W", 0)),
        (Action(1, "F", 0), Action(1, "I", 0), Action(1, "W", 0)),
    )
    costs = equal_stages(2)
    assert simulate_pipeline(schedule, costs).makespan == 5
    assert simulate_pipeline(one_forward_one_backward(2, 1), costs).makespan == 6


def published(
    rank_of: tuple[int, ...], microbatches: int, *all_costs: PipelineCosts
) -> Iterator[Schedule]:
    """All schedules with a name, made for each of the costs."""
    for costs in all_costs:
        yield from named_schedules(rank_of, microbatches, costs)


@few(20)
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
    seconds = simulate_pipeline(found, costs).step_seconds
    unlimited = replace(costs, memory_limit=None)
    for schedule in published(rank_of, microbatches, unlimited, costs):
        if max(peak_bytes(schedule, costs)) <= (costs.memory_limit or 0):
            assert seconds <= simulate_pipeline(schedule, costs).step_seconds, schedule.name


@few(10)
@given(st.data(), PLACEMENTS, st.integers(1, 6))
def test_nor_is_one_whose_first_stages_only_run_forward(
    data: st.DataObject, rank_of: tuple[int, ...], microbatches: int
) -> None:
    """With updates that differ, too."""
    costs = data.draw(stage_costs(len(rank_of)))
    stages = tuple(replace(each, update=data.draw(EIGHTHS)) for each in costs.stages)
    unlimited = replace(costs, stages=stages)
    first = data.draw(st.integers(0, len(rank_of) - 1))
    free = forward_only(unlimited, first)
    named = [trained_from(s, first) for s in named_schedules(rank_of, microbatches, free)]
    most = max(max(peak_bytes(schedule, unlimited)) for schedule in named)
    least = min(max(peak_bytes(schedule, unlimited)) for schedule in named)
    limit = data.draw(st.integers(least, most))
    found = auto(rank_of, microbatches, replace(unlimited, memory_limit=limit), first)
    check(found, replace(unlimited, memory_limit=limit))
    assert found.first_trained == first
    seconds = simulate_pipeline(found, unlimited).step_seconds
    for schedule in named:
        if max(peak_bytes(schedule, unlimited)) <= limit:
            assert seconds <= simulate_pipeline(schedule, unlimited).step_seconds


@few(8)
@given(st.data(), PLACEMENTS, st.integers(1, 6), st.booleans())
def test_without_barriers_none_that_fits_is_faster_among_many_steps(
    data: st.DataObject, rank_of: tuple[int, ...], microbatches: int, is_limited: bool
) -> None:
    """Nor Zero Bubble's own; with updates that differ, and where the first stages do not train."""
    costs = data.draw(stage_costs(len(rank_of)))
    stages = tuple(replace(each, update=data.draw(EIGHTHS)) for each in costs.stages)
    first = data.draw(st.sampled_from([0, 0, len(rank_of) - 1]))
    free = PipelineCosts(stages, has_barrier=False)
    without = forward_only(free, first)
    those = [trained_from(each, first) for each in published(rank_of, microbatches, without)]
    peaks = [max(peak_bytes(schedule, free)) for schedule in those]
    limit = data.draw(st.integers(min(peaks), max(peaks))) if is_limited else None
    costs = replace(free, memory_limit=limit)
    found, known = (
        pipeline_period(find(rank_of, microbatches, costs, first), costs)
        for find in (auto, best_known)
    )
    assert found <= known * (1 + SAME)
    for schedule, peak in zip(those, peaks, strict=True):
        if limit is None or peak <= limit:
            assert known <= pipeline_period(schedule, costs) * (1 + SAME), schedule.name


@pytest.mark.parametrize("number", range(4))
def test_zero_bubbles_heuristic_is_not_faster_among_many_steps(number: int) -> None:
    """Of larger pipelines, with any costs."""
    draw = random.Random(number)
    ranks, microbatches = draw.randint(4, 8), draw.randint(8, 24)
    stages = tuple(
        StageCost(
            *(draw.uniform(0.5, 2) for _ in range(3)),
            weight_bytes=draw.randint(1, 9),
            update=draw.uniform(0, 2),
            send_seconds=draw.uniform(0, 1),
            send_back_seconds=draw.uniform(0, 1),
        )
        for _ in range(ranks)
    )
    costs = PipelineCosts(stages, memory_limit=draw.choice([None, 150]), has_barrier=False)
    rank_of = tuple(range(ranks))
    seconds = pipeline_period(auto(rank_of, microbatches, costs), costs)
    for schedule in zero_bubble.automatic(microbatches, costs):
        if costs.memory_limit is None or max(peak_bytes(schedule, costs)) <= costs.memory_limit:
            assert seconds <= 1.002 * pipeline_period(schedule, costs)


def test_a_barrier_decides_which_schedule_is_the_fastest() -> None:
    stages = StageCost(4, 1, 1, update=3), StageCost(4, 4, 4, update=1)
    costs = PipelineCosts(stages)
    one, other = (
        best_known((0, 1), 2, replace(costs, has_barrier=has_barrier))
        for has_barrier in (True, False)
    )
    # Both steps end after 29 s, but with the one, both ranks are done then.
    assert simulate_pipeline(one, costs).step_seconds == 29
    assert simulate_pipeline(other, costs).step_seconds == 29
    assert pipeline_period(one, costs) == 29
    assert pipeline_period(other, costs) == 25
    tried = schedules_to_try((0, 1), 2, replace(costs, has_barrier=False))
    assert min(pipeline_period(each, costs) for each in tried) <= 25


@pytest.mark.parametrize(
    ("rank_of", "microbatches", "first", "seconds"),
    [
        ((0, 1), 3, 0, [(0, 3, 2, 0), (3, 0, 0, 8)]),
        ((0, 1, 2), 4, 1, [(3, 1, 3, 0), (3, 2, 2, 0), (0, 0, 2, 8)]),
        ((0, 1, 0, 1), 2, 1, [(3, 3, 0, 0), (1, 3, 2, 0), (1, 3, 2, 8), (1, 2, 2, 0)]),
    ],
)
def test_a_long_update_on_one_rank_counts(
    rank_of: tuple[int, ...], microbatches: int, first: int, seconds: list[tuple[float, ...]]
) -> None:
    """The schedule whose last action ends first is not the one whose step ends first."""
    costs = PipelineCosts(tuple(StageCost(*each[:3], update=each[3]) for each in seconds))
    found = auto(rank_of, microbatches, costs, first)
    free = forward_only(costs, first)
    for schedule in named_schedules(rank_of, microbatches, free):
        other = simulate_pipeline(trained_from(schedule, first), costs)
        assert simulate_pipeline(found, costs).step_seconds <= other.step_seconds, schedule.name


def all_orders(stage: int, microbatches: int) -> Iterator[tuple[Action, ...]]:
    """Of one stage; those that differ only in which micro-batch is which are as long."""

    def words(counts: tuple[int, int, int], word: str) -> Iterator[str]:
        if len(word) == 3 * microbatches:
            yield word
        for number, kind in enumerate("FIW"):
            most = microbatches if number == 0 else counts[number - 1]
            if counts[number] < most:
                more = tuple(c + (at == number) for at, c in enumerate(counts))
                yield from words(more, word + kind)  # type: ignore[arg-type]

    for word in words((0, 0, 0), ""):
        yield tuple(Action(stage, kind, word[:at].count(kind)) for at, kind in enumerate(word))


COSTS = st.integers(4, 16).map(lambda number: number / 8)


def best_of_all_orders(
    stages: tuple[StageCost, ...], microbatches: int, limit: int | None
) -> float:
    """Seconds of the fastest of all orders that fit; one stage a rank."""
    rank_of = tuple(range(len(stages)))
    evaluator = Evaluator(rank_of, microbatches, PipelineCosts(stages, memory_limit=limit))
    every = tuple(tuple(all_orders(stage, microbatches)) for stage in rank_of)
    orders = [
        [evaluator.orders_of(Schedule("x", rank_of, microbatches, (order,)))[0] for order in those]
        for those in every
    ]
    fitting = [
        [order for order in those if evaluator.fits(rank, order)]
        for rank, those in enumerate(orders)
    ]
    return min(evaluator.step_seconds(those) for those in itertools.product(*fitting))


@st.composite
def small_stages(draw: st.DrawFn, number: int) -> tuple[StageCost, ...]:
    return tuple(
        StageCost(
            *(draw(COSTS) for _ in range(3)),
            weight_bytes=1,
            send_seconds=draw(COSTS) / 4,
            send_back_seconds=draw(COSTS) / 4,
        )
        for _ in range(number)
    )


@given(st.data(), st.sampled_from([(2, 2), (2, 3), (3, 2)]), st.sampled_from([None, 1, 2, 3]))
def test_the_exact_solver_finds_what_trying_all_orders_finds(
    data: st.DataObject, size: tuple[int, int], limit: int | None
) -> None:
    stages = data.draw(small_stages(size[0]))
    best = best_of_all_orders(stages, size[1], limit)
    exact = Exact(tuple(range(size[0])), size[1], PipelineCosts(stages, memory_limit=limit))
    assert exact.is_any_faster(best + 1e-6)
    assert not exact.is_any_faster(best)


@few(15)
@given(
    st.sampled_from([2, 3]),
    st.sampled_from([2, 3, 4, 5]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([(1, 1, 1), (1, 1.5, 0.5), (2, 3, 2.5)]),
)
def test_no_order_is_a_hundredth_faster(
    ranks: int, microbatches: int, limit: int | None, seconds: tuple[float, float, float]
) -> None:
    """By an exact solver."""
    stages = tuple(
        StageCost(
            *(s * (1 + rank / 4) for s in seconds),
            weight_bytes=1,
            send_seconds=0.25,
            send_back_seconds=0.25,
        )
        for rank in range(ranks)
    )
    costs = PipelineCosts(stages, memory_limit=limit)
    found = simulate_pipeline(auto(tuple(range(ranks)), microbatches, costs), costs).makespan
    assert not Exact(tuple(range(ranks)), microbatches, costs).is_any_faster(found / 1.01)


@pytest.mark.parametrize("number", range(24))
def test_no_order_that_fits_into_memory_is_faster(number: int) -> None:
    """By an exact solver; of up to four stages that all differ."""
    draw = random.Random(number)
    rank_of = draw.choice([(0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 0, 1), (0, 1, 1, 0)])
    microbatches = draw.randint(2, 3 if len(rank_of) == 4 else 4)
    stages = tuple(
        StageCost(
            *(draw.randint(2, 16) / 8 for _ in range(3)),
            input_bytes=draw.randint(0, 4),
            weight_bytes=draw.randint(1, 6),
            gradient_bytes=draw.randint(0, 4),
            send_seconds=draw.randint(0, 4) / 8,
            send_back_seconds=draw.randint(0, 4) / 8,
        )
        for _ in rank_of
    )
    one = max(
        sum(sum(stages[s].in_flight_bytes) for s, at in enumerate(rank_of) if at == rank)
        for rank in rank_of
    )
    costs = PipelineCosts(stages, memory_limit=draw.randint(one, 2 * one))
    found = simulate_pipeline(auto(rank_of, microbatches, costs), costs).makespan
    # With several stages a rank, now and then one is missed.
    nearly = 1.0 if len(set(rank_of)) == len(rank_of) else 1.03
    assert not Exact(rank_of, microbatches, costs).is_any_faster(found / nearly)


@few(6)
@given(st.integers(0, 1 << 32))
def test_none_with_a_name_is_faster_in_large_pipelines(number: int) -> None:
    """Whatever the search has time for, it begins with them."""
    draw = random.Random(number)
    ranks, microbatches = draw.randint(2, 16), draw.randint(1, 64)
    rank_of = draw.choice(
        [
            tuple(range(ranks)),
            (*range(ranks), *range(ranks)),
            (*range(ranks), *reversed(range(ranks))),
        ]
    )
    stages = tuple(
        StageCost(
            *(draw.uniform(0.5, 2) for _ in range(3)),
            input_bytes=draw.randint(0, 9),
            weight_bytes=draw.randint(1, 9),
            gradient_bytes=draw.randint(0, 9),
            base_bytes=draw.randint(0, 50),
            send_seconds=draw.uniform(0, 1),
            send_back_seconds=draw.uniform(0, 1),
            exchange=draw.uniform(0, 4) * (number % 2),  # with replicas, and without
            buckets=draw.randint(1, 4),
        )
        for _ in rank_of
    )
    free = PipelineCosts(stages)
    named = list(named_schedules(rank_of, microbatches, free))
    peaks = sorted(max(peak_bytes(schedule, free)) for schedule in named)
    # Under most limits some fit and some do not.
    limit = draw.choice([None, *(draw.randint(peaks[0], peak) for peak in peaks)])
    costs = replace(free, memory_limit=limit)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline_search, "EVALUATED_ACTIONS", 20_000)
        patched.setattr(pipeline_search, "SCHEDULED_ACTIONS", 20_000)
        found = auto(rank_of, microbatches, costs)
    check(found, costs)
    seconds = simulate_pipeline(found, costs).step_seconds
    for schedule in (*named, *published(rank_of, microbatches, costs)):
        if limit is None or max(peak_bytes(schedule, free)) <= limit:
            assert seconds <= simulate_pipeline(schedule, free).step_seconds, schedule.name


def in_v(ranks: int) -> tuple[int, ...]:
    return (*range(ranks), *reversed(range(ranks)))


@pytest.mark.parametrize(
    ("rank_of", "microbatches", "seconds", "hop", "peak", "published"),
    [
        (in_v(4), 8, (10, 10, 10), 0, 4, 590),  # V-Min
        (in_v(4), 32, (10, 10, 10), 0, 4, 2030),
        (in_v(6), 18, (10, 12, 8), 1, 8, 1266),  # V-Half
        (in_v(8), 24, (10, 10, 10), 0, 10, 1610),
        ((0, 1, 2, 3) * 2, 8, (1, 1, 1), 0.1, None, 52.6),  # PyTorch's InterleavedZeroBubble
        ((0, 1) * 4, 6, (1, 1, 1), 0.1, None, 74.0),
    ],
)
def test_as_fast_as_what_is_published_with_as_much_memory(
    rank_of: tuple[int, ...],
    microbatches: int,
    seconds: tuple[float, float, float],
    hop: float,
    peak: int | None,
    published: float,
) -> None:
    """Makespans of the authors' own code, by which ``auto`` was once slower by up to 23 %."""
    cost = StageCost(*seconds, weight_bytes=1, send_seconds=hop, send_back_seconds=hop)
    costs = PipelineCosts((cost,) * len(rank_of), memory_limit=peak)
    found = auto(rank_of, microbatches, costs)
    check(found, costs)
    assert simulate_pipeline(found, costs).makespan <= published * (1 + SAME)


def small(
    rank_of: tuple[int, ...], limit: int | None, hop: float, *seconds: tuple[int, ...]
) -> tuple[tuple[int, ...], PipelineCosts]:
    """A pipeline that keeps 500 bytes from F to I, and as many to W; all F, all I and all W."""
    stages = tuple(
        StageCost(*each, 500, 500, send_seconds=hop, send_back_seconds=hop)
        for each in zip(*seconds, strict=True)
    )
    return rank_of, PipelineCosts(stages, limit)


@pytest.mark.parametrize(
    ("pipeline", "microbatches", "optimum"),
    [
        (
            small(
                *(in_v(3), 4000, 5, (94, 85, 86, 92, 110, 93)),
                *((131, 118, 119, 129, 153, 130), (43, 39, 39, 42, 50, 43)),
            ),
            *(4, 2955),
        ),
        (
            small((0, 1, 2), 3000, 30, (77, 112, 118), (98, 144, 152), (46, 67, 71)),
            *(8, 2977),
        ),
    ],
)
def test_nearly_the_optimum_of_small_pipelines(
    pipeline: tuple[tuple[int, ...], PipelineCosts], microbatches: int, optimum: float
) -> None:
    """Proven by CP-SAT of OR-tools 9.15, in 4 and 10 s: an interval for each action and message, no
    overlap on ranks and links, and a reservoir for the memory of each rank."""
    rank_of, costs = pipeline
    found = auto(rank_of, microbatches, costs)
    check(found, costs)
    assert optimum <= simulate_pipeline(found, costs).makespan <= 1.002 * optimum


def test_many_ranks_and_micro_batches_take_seconds() -> None:
    draw = random.Random(1)
    stages = tuple(
        StageCost(
            *(draw.uniform(0.8, 1.2) for _ in range(3)),
            weight_bytes=1,
            send_seconds=0.1,
            send_back_seconds=0.1,
        )
        for _ in range(64)
    )
    costs = PipelineCosts(stages, memory_limit=64)
    schedules: list[Schedule] = []
    assert fastest(lambda: schedules.append(auto(tuple(range(64)), 128, costs))) < 25
    (found,) = schedules
    named = simulate_pipeline(zero_bubble_h1(64, 128), costs).makespan
    assert simulate_pipeline(found, costs).makespan <= named


def test_a_fifth_faster_than_1f1b_with_its_memory() -> None:
    costs = replace(equal_stages(8), memory_limit=8)
    plain = simulate_pipeline(one_forward_one_backward(8, 16), costs).makespan
    found = auto(tuple(range(8)), 16, costs)
    check(found, costs)
    assert plain / simulate_pipeline(found, costs).makespan >= 1.2


@pytest.mark.parametrize(
    ("rank_of", "microbatches", "exchanges"),
    [((0, 1, 2, 3), 8, (6, 0, 0, 0)), ((0, 1, 1, 0), 4, (2, 2, 2, 2)), ((0, 1, 0, 1), 4, (3,) * 4)],
)
def test_a_schedule_made_for_the_exchanges_hides_more_of_them(
    rank_of: tuple[int, ...], microbatches: int, exchanges: tuple[float, ...]
) -> None:
    alone = equal_stages(len(rank_of), 1.0, 1.0, 1.0)
    stages = zip(alone.stages, exchanges, strict=True)
    costs = PipelineCosts(
        tuple(replace(each, exchange=seconds, buckets=4) for each, seconds in stages)
    )
    without = simulate_pipeline(auto(rank_of, microbatches, alone), costs).step_seconds
    found = simulate_pipeline(auto(rank_of, microbatches, costs), costs).step_seconds
    # With one stage a rank, what is left is the end of the last rank's tail.
    assert found < without if len(set(rank_of)) < len(rank_of) else found <= without


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


@given(PLACEMENTS.flatmap(lambda rank_of: st.tuples(st.just(rank_of), stage_costs(len(rank_of)))))
def test_the_best_known_is_as_fast_as_all_with_a_name(
    case: tuple[tuple[int, ...], PipelineCosts],
) -> None:
    rank_of, costs = case
    known = best_known(rank_of, 4, costs)
    seconds = simulate_pipeline(known, costs).step_seconds
    for named in named_schedules(rank_of, 4, costs):
        assert seconds <= simulate_pipeline(named, costs).step_seconds * (1 + 1e-9)
    assert known.name != "auto"


def test_where_nothing_with_a_name_fits_rules_make_the_first_schedule() -> None:
    costs = replace(equal_stages(4), memory_limit=3)
    known = best_known((0, 1, 1, 0), 4, costs)
    assert known.name == "auto"
    check(known, costs)
    with pytest.raises(UserError, match="memory limit"):
        best_known((0, 1), 4, replace(costs, memory_limit=0, stages=costs.stages[:2]))


def test_what_is_worth_trying_is_the_best_and_what_is_nearly_as_fast() -> None:
    costs = equal_stages(3, 1.0, 1.1, 0.8)
    tried = schedules_to_try((0, 1, 2), 6, costs)
    seconds = [simulate_pipeline(each, costs).step_seconds for each in tried]
    best = simulate_pipeline(auto((0, 1, 2), 6, costs), costs).step_seconds
    assert seconds[0] == pytest.approx(best)
    assert 1 < len(tried) <= pipeline_search.MOST_TRIED
    assert max(seconds) <= best * (1 + pipeline_search.NEARLY)
    assert len({split(each).actions for each in tried}) == len(tried)
