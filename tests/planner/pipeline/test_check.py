"""What is wrong with a pipeline schedule is found before it runs, and shown."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import Action, Schedule, from_csv, parse_action, trained_from
from ooodist.planner.pipeline.check import ScheduleError, ScheduleLacksMemory, check, grid
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.named.schedules import (
    gpipe,
    interleaved,
    modulo,
    one_forward_one_backward,
    zero_bubble_h1,
    zero_bubble_v,
)
from ooodist.planner.pipeline.simulate import Deadlock, peak_bytes, simulate_pipeline
from tests.planner.pipelines import partly_trained, pipelines, schedules
from tests.processor_time import fastest


@given(schedules())
def test_transfers_that_are_needed_are_right(schedule: Schedule) -> None:
    check(with_transfers(schedule))


@given(partly_trained())
def test_the_first_stages_need_not_train(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    _, schedule, costs = pipeline
    check(schedule, costs)
    check(with_transfers(schedule), costs)
    most = max(peak_bytes(schedule, costs))
    check(schedule, replace(costs, memory_limit=most))
    if most:
        with pytest.raises(ScheduleError, match=f"the memory limit is {most - 1}"):
            check(schedule, replace(costs, memory_limit=most - 1))


@given(partly_trained(), st.data())
def test_a_missing_transfer_is_named(
    pipeline: tuple[Schedule, Schedule, PipelineCosts], data: st.DataObject
) -> None:
    full = with_transfers(pipeline[1])
    sent = [a for actions in full.actions for a in actions if "_" in a.kind]
    if not sent:
        return
    gone = data.draw(st.sampled_from(sent))
    rest = replace(
        full, actions=tuple(tuple(a for a in those if a != gone) for those in full.actions)
    )
    if not any("_" in a.kind for those in rest.actions for a in those):
        return
    with pytest.raises(ScheduleError, match=f"{gone} is missing"):
        check(rest)


@given(schedules(), st.data())
def test_two_actions_in_the_other_order_block_or_do_not_matter(
    schedule: Schedule, data: st.DataObject
) -> None:
    """The checker says that it stands still where the simulator stands still, and only there."""
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    actions = list(schedule.actions[rank])
    one, other = (data.draw(st.integers(0, len(actions) - 1)) for _ in range(2))
    actions[one], actions[other] = actions[other], actions[one]
    lists = list(schedule.actions)
    lists[rank] = tuple(actions)
    changed = replace(schedule, actions=tuple(lists))
    try:
        simulate_pipeline(changed, equal_stages(schedule.stages))
    except Deadlock:
        with pytest.raises(ScheduleError, match="no rank can go on"):
            check(changed)
    else:
        check(changed)


@given(pipelines())
def test_the_memory_limit_is_checked_to_the_byte(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    schedule, costs = pipeline
    most = max(peak_bytes(schedule, costs))
    check(schedule, replace(costs, memory_limit=most))
    if most:
        message = f"needs {most} bytes, and the memory limit is {most - 1}: .* lacks 1 of {most} "
        with pytest.raises(ScheduleError, match=message):
            check(schedule, replace(costs, memory_limit=most - 1))


@given(partly_trained(), st.data())
def test_the_message_says_what_is_lacking(
    pipeline: tuple[Schedule, Schedule, PipelineCosts], data: st.DataObject
) -> None:
    """To the byte, and its parts are the whole."""
    _, schedule, costs = pipeline
    states = [data.draw(st.integers(0, cost.base_bytes)) for cost in costs.stages]
    stages = zip(costs.stages, states, strict=True)
    costs = replace(costs, stages=tuple(replace(cost, state_bytes=own) for cost, own in stages))
    most = max(peak_bytes(schedule, costs))
    if not most:
        return
    limit = data.draw(st.integers(0, most - 1))
    with pytest.raises(ScheduleLacksMemory) as error:
        check(schedule, replace(costs, memory_limit=limit))
    assert error.value.lacking == most - limit
    check(schedule, replace(costs, memory_limit=limit + error.value.lacking))
    found = re.search(
        r"lacks (\d+) of (\d+) bytes \((\d+) of weights and optimizer state, (\d+) of summed "
        r"gradients and buffers, (\d+) of activations of (\d+) micro-batch",
        str(error.value),
    )
    assert found is not None, error.value
    lacking, total, state, others, activations, microbatches = map(int, found.groups())
    assert (lacking, total) == (most - limit, most)
    own = [number for number, rank in enumerate(schedule.rank_of) if rank == error.value.rank]
    assert state == sum(states[number] for number in own)
    assert state + others == sum(costs.stages[number].base_bytes for number in own)
    assert total == state + others + activations
    assert microbatches <= schedule.microbatches
    assert microbatches or not activations


def test_memory_is_told_apart() -> None:
    cost = StageCost(input_bytes=1, weight_bytes=9, gradient_bytes=5, base_bytes=70, state_bytes=60)
    with pytest.raises(ScheduleLacksMemory) as error:
        check(one_forward_one_backward(3, 6), PipelineCosts((cost,) * 3, memory_limit=100))
    assert str(error.value).splitlines()[0] == (
        "schedule 1f1b, rank 0, step 3: 0B0 needs 105 bytes, and the memory limit is 100: stage 0 "
        "lacks 5 of 105 bytes (60 of weights and optimizer state, 10 of summed gradients and "
        "buffers, 35 of activations of 3 micro-batches); raise the limit by 5, use fewer "
        "micro-batches in flight (another schedule) or smaller ones, or more ranks"
    )


def test_memory_names_the_first_step_that_does_not_fit() -> None:
    costs = PipelineCosts((StageCost(weight_bytes=10),) * 2, memory_limit=25)
    with pytest.raises(ScheduleError, match="0F2 needs 30 bytes") as error:
        check(with_transfers(gpipe(2, 3)), costs)
    assert (error.value.rank, error.value.step) == (0, 4)
    assert ">> 0F2 <<" in str(error.value)
    check(one_forward_one_backward(2, 3), costs)


def schedule_of(text: str) -> Schedule:
    """The schedule of CSV text, with the transfers in it."""
    lines = text.splitlines()
    actions = tuple(tuple(map(parse_action, line.split(","))) for line in lines)
    return replace(from_csv(text, "x"), actions=actions)


def wrong(text: str, message: str) -> ScheduleError:
    with pytest.raises(ScheduleError, match=message) as error:
        check(schedule_of(text))
    return error.value


def test_what_is_missing_twice_or_elsewhere_is_named() -> None:
    wrong("0F0,0F0,0B0", "rank 0, step 1: 0F0 comes twice")
    wrong("0F0,0I0", "stage 0 does F, I of micro-batch 0; it must do F, I and W, or F and B")
    wrong("0F0,0I0,0W0,0B0", "stage 0 does B, F, I, W of micro-batch 0")
    wrong("0F0,0SEND_F0,0B0\n1F0,1B0", "0RECV_B0 is missing")
    wrong(
        "0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0",
        "rank 0, step 4: nobody waits for 0SEND_B0",
    )
    other = Schedule("x", (0, 1), 1, ((Action(1, "F", 0),), ()))
    with pytest.raises(ScheduleError, match="1F0 is of a stage that this rank does not have"):
        check(other)
    wrong("0F0,0B0,0W0", "stage 0 does B, F, W of .* F and B; in files of earlier versions B was")
    nothing = Schedule("x", (0,), 2, ((Action(0, "F", 1), Action(0, "B", 1)),))
    with pytest.raises(ScheduleError, match="stage 0 does nothing of micro-batch 0"):
        check(nothing)
    beyond = Schedule("x", (0,), 1, ((Action(0, "F", 1),),))
    with pytest.raises(ScheduleError, match="beyond the 1 of a step"):
        check(beyond)


def test_stages_that_should_train_or_not_are_named() -> None:
    wrong(
        "0F0,0B0\n1F0\n2F0,2B0",
        "stage 1 does F of micro-batch 0; it must do F, I and W, or F and B, as stage 0 before it",
    )
    wrong("0F0\n1F0,1B0\n2F0", "rank 2: stage 2 does F .* as stage 1 before it trains")
    wrong("0F0,0F1\n1F0,1F1,1B0", "stage 1 does F of micro-batch 1; it must do F, I and W")
    wrong("0F0,0W0\n1F0,1B0", "stage 0 does F, W .*; without any I or B, it must do F alone")
    wrong("0F1\n1F0,1F1,1B0,1B1", "stage 0 does nothing of micro-batch 0; without any I")
    check(from_csv("0F0\n1F0,1B0", "x"))


def test_gradients_that_nobody_needs_are_not_sent() -> None:
    sent = "0F0,0SEND_F0\n1RECV_F0,1F0,1B0"
    check(schedule_of(sent))
    wrong(f"{sent},1SEND_B0", "rank 1, step 3: nobody waits for 1SEND_B0")
    wrong(sent.replace("\n", ",0RECV_B0\n"), "rank 0, step 2: nobody waits for 0RECV_B0")


def test_a_rank_that_waits_for_itself_is_to_blame() -> None:
    error = wrong("0F0,0B0\n1B0,1F0", "1B0 of rank 1 waits for 1F0")
    assert (error.rank, error.step) == (1, 0)


def test_ranks_that_wait_for_each_other() -> None:
    crossed = "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
    crossed += "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"
    error = wrong(
        crossed, "0RECV_B0 of rank 0 waits for 1SEND_B0; 1RECV_F1 of rank 1 waits for 0SEN"
    )
    assert (error.rank, error.step) == (0, 2)


def test_the_grid_shows_ranks_and_steps() -> None:
    schedule = from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "x")
    assert grid(schedule).splitlines() == [
        "step    0    1    2    3",
        "rank 0  0F0  0F1  0B0  0B1",
        "rank 1  1F0  1B0  1F1  1B1",
    ]
    marked = grid(schedule, rank=1, step=2).splitlines()
    assert marked[2] == "rank 1  1F0  1B0  >> 1F1 <<  1B1"


def test_only_the_steps_around_the_bad_one_are_shown() -> None:
    shown = grid(gpipe(2, 50), rank=1, step=50).splitlines()
    assert shown[0].split() == ["step", *map(str, range(46, 55))]
    assert ">> 1B0 <<" in shown[2]
    assert len(shown) == 3


def test_costs_of_other_stages() -> None:
    with pytest.raises(UserError, match="of 3 stages, the schedule has 2"):
        check(gpipe(2, 1), equal_stages(3))


def test_takes_less_than_a_second() -> None:
    for make in (gpipe, interleaved, zero_bubble_h1, zero_bubble_v, modulo):
        schedule = make(16, 128)
        for checked in (schedule, trained_from(schedule, schedule.stages // 2)):
            costs = equal_stages(schedule.stages)
            assert fastest(partial(check, checked, costs), runs=3) < 1
