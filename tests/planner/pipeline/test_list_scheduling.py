"""Schedules that follow from costs and a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages
from ooodist.planner.pipeline.list_scheduling import Rule, list_schedule
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline
from tests.planner.pipelines import stage_costs

RULES = st.builds(
    Rule,
    kinds=st.one_of(
        st.permutations(["F", "I", "W"]).map(tuple), st.permutations(["F", "B"]).map(tuple)
    ),
    entering=st.one_of(st.none(), st.integers(1, 4)),
    ahead=st.one_of(st.none(), st.integers(1, 4)),
    deep=st.booleans(),
)
RANKS = st.sampled_from([(0,), (0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2), (0, 1, 2, 2, 1, 0)])


@given(st.data(), RANKS, st.integers(1, 6), RULES)
def test_every_rule_makes_a_schedule_that_can_run(
    data: st.DataObject, rank_of: tuple[int, ...], microbatches: int, rule: Rule
) -> None:
    costs = data.draw(stage_costs(len(rank_of)))
    check(list_schedule("x", rank_of, microbatches, costs, rule), costs)


@given(st.data(), RANKS, st.integers(1, 6), RULES)
def test_the_memory_limit_is_kept(
    data: st.DataObject, rank_of: tuple[int, ...], microbatches: int, rule: Rule
) -> None:
    """Where one micro-batch fits, some schedule is found, and it fits."""
    costs = data.draw(stage_costs(len(rank_of)))
    one = list_schedule("x", rank_of, 1, costs, Rule())
    limit = max(
        sum(
            sum(cost.in_flight_bytes) + cost.base_bytes
            for cost, where in zip(costs.stages, rank_of, strict=True)
            if where == rank
        )
        for rank in range(one.ranks)
    )
    costs = replace(costs, memory_limit=limit + data.draw(st.integers(0, 20)))
    check(list_schedule("x", rank_of, microbatches, costs, rule), costs)


def test_what_is_more_urgent_comes_first() -> None:
    costs = equal_stages(1)
    assert actions(costs, Rule(("F", "I", "W"))) == "0F0 0F1 0I0 0I1 0W0 0W1"
    assert actions(costs, Rule(("I", "F", "W"))) == "0F0 0I0 0F1 0I1 0W0 0W1"
    assert actions(costs, Rule(("I", "W", "F"))) == "0F0 0I0 0W0 0F1 0I1 0W1"
    assert actions(costs, Rule(("B", "F"))) == "0F0 0B0 0F1 0B1"


def test_deep_or_wide() -> None:
    costs = equal_stages(2)
    assert actions(costs, Rule(("F", "B"))) == "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1"
    assert actions(costs, Rule(("F", "B"), deep=False)) == ("0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1")


def test_entering_and_ahead_limit_what_is_in_flight() -> None:
    costs = equal_stages(3)
    for most in (1, 2, 3):
        for rule in (Rule(entering=most), Rule(("F", "I", "W"), entering=most)):
            schedule = list_schedule("x", (0, 1, 2), 8, costs, rule)
            assert max(peak_bytes(schedule, costs)) <= most
    schedule = list_schedule("x", (0, 1, 2), 8, costs, Rule(("F", "B"), ahead=1))
    assert peak_bytes(schedule, costs) == (3, 2, 1)


def test_w_fills_the_time_in_which_a_rank_would_wait() -> None:
    """Rank 0 waits for its second I until rank 1 has done a long one."""
    costs = PipelineCosts((StageCost(), StageCost(input_gradient=3)))
    schedule = list_schedule("x", (0, 1), 2, costs, Rule())
    assert [str(action) for action in schedule.actions[0]] == [
        "0F0",
        "0F1",
        "0I0",
        "0W0",
        "0I1",
        "0W1",
    ]


@given(st.data(), st.integers(1, 6))
def test_one_rank_never_waits(data: st.DataObject, microbatches: int) -> None:
    costs = data.draw(stage_costs(3))
    assume(sum(cost.seconds("F") + cost.seconds("B") for cost in costs.stages) > 0)
    schedule = list_schedule("x", (0, 0, 0), microbatches, costs, Rule())
    assert simulate_pipeline(schedule, costs).bubble == pytest.approx(0)


def test_too_little_memory_for_one_micro_batch() -> None:
    costs = PipelineCosts((StageCost(weight_bytes=5, gradient_bytes=3),), memory_limit=7)
    with pytest.raises(UserError, match="a memory limit of 7 bytes a rank is too low"):
        list_schedule("x", (0,), 1, costs, Rule())
    list_schedule("x", (0,), 1, replace(costs, memory_limit=8), Rule())


def test_costs_of_other_stages() -> None:
    with pytest.raises(UserError, match="of 3 stages, the schedule has 2"):
        list_schedule("x", (0, 1), 1, equal_stages(3), Rule())


def actions(costs: PipelineCosts, rule: Rule) -> str:
    """Of two micro-batches on one rank."""
    schedule = list_schedule("x", (0,) * len(costs.stages), 2, costs, rule)
    return " ".join(map(str, schedule.actions[0]))
