"""The simulated times and bytes of pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import (
    Action,
    Schedule,
    from_csv,
    tail_of,
    trained_from,
)
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages, forward_only
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.named.schedules import (
    gpipe,
    one_forward_one_backward,
    zero_bubble_h1,
    zero_bubble_h2,
)
from ooodist.planner.pipeline.simulate import (
    Deadlock,
    Exchange,
    Run,
    pipeline_period,
    saved_bytes,
    simulate_pipeline,
)
from tests.planner.pipelines import partly_trained, reference_ends, reference_step_seconds


@given(partly_trained())
def test_is_as_the_slow_reference(pipeline: tuple[Schedule, Schedule, PipelineCosts]) -> None:
    _, schedule, costs = pipeline
    timeline = simulate_pipeline(schedule, costs)
    ends = reference_ends(schedule, costs)
    assert {run.action: run.end for runs in timeline.runs for run in runs} == ends
    assert timeline.makespan == max(ends.values())
    assert timeline.step_seconds == reference_step_seconds(schedule, costs)
    for runs, actions in zip(timeline.runs, schedule.actions, strict=True):
        assert tuple(run.action for run in runs) == actions
        assert all(one.end <= other.start for one, other in itertools.pairwise(runs))


@given(partly_trained())
def test_transfers_in_the_schedule_change_nothing(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    _, schedule, costs = pipeline
    assert simulate_pipeline(with_transfers(schedule), costs) == simulate_pipeline(schedule, costs)


@given(partly_trained())
def test_nothing_is_left_in_memory(pipeline: tuple[Schedule, Schedule, PipelineCosts]) -> None:
    """What each rank has kept in the end is what it keeps all the time."""
    _, schedule, costs = pipeline
    peaks = simulate_pipeline(schedule, costs).peak_bytes
    twice = replace(schedule, actions=tuple((*actions, *actions) for actions in schedule.actions))
    for rank, kept in enumerate(saved_bytes(twice, costs)):
        half = len(kept) // 2
        assert kept[:half] == kept[half:]
        assert max(kept) == peaks[rank]


@given(partly_trained())
def test_what_nobody_needs_takes_nothing(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    """Without it no step is slower and no rank keeps more, at whatever cost."""
    full, schedule, costs = pipeline
    timeline = simulate_pipeline(schedule, costs)
    free = forward_only(costs, schedule.first_trained)
    assert simulate_pipeline(schedule, free) == timeline
    assert saved_bytes(schedule, free) == saved_bytes(schedule, costs)
    for each in (free, costs):
        slower = simulate_pipeline(full, each)
        assert timeline.makespan <= slower.makespan
        assert timeline.step_seconds <= slower.step_seconds
        assert all(
            one <= other for one, other in zip(timeline.peak_bytes, slower.peak_bytes, strict=True)
        )


@given(partly_trained())
def test_exchanges_follow_their_buckets_one_at_a_time(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    _, schedule, costs = pipeline
    timeline = simulate_pipeline(schedule, costs)
    alone = replace(costs, stages=tuple(replace(each, exchange=0) for each in costs.stages))
    without = simulate_pipeline(schedule, alone)
    assert timeline.runs == without.runs  # they run beside
    assert not any(without.exchanges)
    assert timeline.exposed_exchange == timeline.step_seconds - without.step_seconds >= 0
    for runs, exchanges, start in zip(
        timeline.runs, timeline.exchanges, timeline.update_starts, strict=True
    ):
        of_weights = [run for run in runs if run.action.kind in ("W", "B")]
        trained = {run.action.stage for run in of_weights}
        expected = {stage for stage in trained if costs.stages[stage].exchange}
        assert {each.stage for each in exchanges} == expected
        for each in exchanges:
            cost = costs.stages[each.stage]
            last = max(run.end for run in of_weights if run.action.stage == each.stage)
            tail = tail_of([run.action for run in runs])
            is_in_tail = any(action.stage == each.stage for action in tail)
            # It begins once the first bucket is done, or when another exchange is.
            assert each.start >= last - (tail_seconds(runs) if is_in_tail else 0)
            if not is_in_tail or cost.buckets == 1:
                assert each.start in (last, *(other.end for other in exchanges))
                assert each.end - each.start == cost.exchange
            assert each.end >= each.start + cost.exchange
            assert each.end >= last + cost.exchange / cost.buckets
        assert all(one.end <= other.start for one, other in itertools.pairwise(exchanges))
        assert start == max((each.end for each in (*runs, *exchanges)), default=0)


def tail_seconds(runs: Sequence[Run]) -> float:
    """From the start of a rank's tail to its end, with what one B does before its W."""
    return runs[-1].end - runs[-len(tail_of([run.action for run in runs]))].start


@pytest.mark.parametrize(
    ("exchange", "buckets", "span"),
    [
        (4, 1, (8, 12)),  # after the last W, as a whole
        (4, 4, (5, 9)),  # W's are as slow as sums: only the last bucket's sum is left
        (2, 4, (5, 8.5)),  # sums wait for W's
        (8, 4, (5, 13)),  # W's have gone on, and sums have followed each other without a gap
    ],
)
def test_buckets_by_hand(exchange: float, buckets: int, span: tuple[float, float]) -> None:
    """The four W's of the tail, of which each bucket has a part::

    rank       F F F F .. I I I I W W W W        (I takes no time)
    exchange                       a b c d       and each ends one later, if sums are as slow
    """
    cost = StageCost(1, 0, 1, exchange=exchange, buckets=buckets)
    schedule = from_csv("0F0,0F1,0F2,0F3,0I0,0I1,0I2,0I3,0W0,0W1,0W2,0W3\n", "x")
    timeline = simulate_pipeline(schedule, PipelineCosts((cost,)))
    assert timeline.exchanges == ((Exchange(0, *span),),)


def test_sums_take_time_from_the_ws_beside_them() -> None:
    """Three of four buckets are summed beside W's; where W's do not run in buckets, none is."""
    cost = StageCost(1, 0, 1, exchange=2, buckets=4, exchange_cpu=1)
    schedule = from_csv("0F0,0F1,0F2,0F3,0I0,0I1,0I2,0I3,0W0,0W1,0W2,0W3\n", "x")
    timeline = simulate_pipeline(schedule, PipelineCosts((cost,)))
    assert timeline.exchanges == ((Exchange(0, 5, 8 + 0.75 + 0.5),),)
    two = from_csv("0F0,1F0,1I0,1W0,0I0,0W0\n", "x")
    found = simulate_pipeline(two, PipelineCosts((replace(cost, exchange=0), cost)))
    assert found.exchanges == ((Exchange(1, 3, 5),),)


def test_a_b_at_the_end_has_its_w_in_buckets() -> None:
    """The stage before it is done earlier, and its exchange waits for the last W as a whole."""
    costs = PipelineCosts((StageCost(1, 1, 2, exchange=2, buckets=2),) * 2)
    schedule = from_csv("0F0,1F0,1B0,0B0\n", "x")
    timeline = simulate_pipeline(schedule, costs)
    assert timeline.exchanges == ((Exchange(1, 5, 7), Exchange(0, 7, 9)),)


def test_exchanges_by_hand() -> None:
    """The exchange of stage 2 runs beside rank 0's last actions, and that of stage 0 after it::

    rank 0     0F 2F 2I 2W 0I 0W          U
    exchange               |- 2 -|- 0 -|
    """
    costs = PipelineCosts(
        (StageCost(update=0.5, exchange=3), StageCost(), StageCost(update=0.5, exchange=3))
    )
    schedule = from_csv("0F0,2F0,2I0,2W0,0I0,0W0\n1F0,1I0,1W0\n", "x")
    timeline = simulate_pipeline(schedule, costs)
    assert timeline.exchanges == ((Exchange(2, 5, 8), Exchange(0, 8, 11)), ())
    assert timeline.makespan == 7
    assert timeline.update_starts == (11, 6)
    assert timeline.step_seconds == 12
    assert timeline.exposed_exchange == 4


def test_only_forward_by_hand() -> None:
    """The link back to rank 0 is free for stage 3, as stage 1 sends nothing back::

    rank 0   0F 2F .. 2F .. .. .. 2I 2W
    rank 1   .. 1F ..
    """
    cost = StageCost(
        1, 1, 1, input_bytes=1, weight_bytes=10, base_bytes=1000, send_back_seconds=2, update=5
    )
    costs = PipelineCosts((cost,) * 4)
    full = from_csv("0F0,2F0,2I0,0I0,2W0,0W0\n1F0,3F0,3I0,1I0,3W0,1W0\n", "x")
    timeline = simulate_pipeline(trained_from(full, 2), costs)
    first, second = ([(run.start, run.end) for run in runs] for runs in timeline.runs)
    assert first == [(0, 1), (2, 3), (7, 8), (8, 9)]
    assert second == [(1, 2), (3, 4), (4, 5), (5, 6)]
    assert timeline.peak_bytes == (2011, 2011)
    assert timeline.updates == (5, 5)
    last = simulate_pipeline(trained_from(full, 3), costs)
    assert (last.makespan, last.peak_bytes, last.updates) == (6, (2000, 2011), (0, 5))


def test_costs_of_stages_that_only_run_forward() -> None:
    cost = StageCost(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, exchange=12, exchange_cpu=13)
    costs = PipelineCosts((cost,) * 3, memory_limit=12)
    frozen = StageCost(1, 0, 0, 0, 0, 0, 7, 8, 0, 10, 0, exchange=0)
    silent = replace(cost, send_back_seconds=0)
    assert forward_only(costs, 0) == costs
    assert forward_only(costs, 1) == replace(costs, stages=(frozen, silent, cost))
    assert forward_only(costs, 3) == replace(costs, stages=(frozen,) * 3)


def test_two_stages_by_hand() -> None:
    """::

    rank 0   F0 F0 F1 F1 .. .. .. .. I0 W0 .. I1 W1
    link            >>    >>    <<       <<
    rank 1   .. .. .. F0 I0 W0 .. F1 ...
    """
    costs = PipelineCosts((StageCost(2, 1, 1, send_seconds=1), StageCost(send_back_seconds=2)))
    timeline = simulate_pipeline(
        from_csv("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1B1\n", "x"), costs
    )
    first, second = ([(run.start, run.end) for run in runs] for runs in timeline.runs)
    assert second == [(3, 4), (4, 5), (5, 6), (6, 7), (7, 9)]
    assert first == [(0, 2), (2, 4), (7, 8), (8, 9), (11, 12), (12, 13)]
    assert timeline.makespan == 13
    assert timeline.spans == (13, 6)
    assert timeline.busy == (8, 6)
    assert timeline.bubble == pytest.approx(1 - 14 / 26)


def test_a_link_sends_one_message_after_the_other() -> None:
    costs = PipelineCosts((StageCost(forward=1, send_seconds=3), StageCost()))
    timeline = simulate_pipeline(gpipe(2, 3), costs)
    assert [run.start for run in timeline.runs[1][:3]] == [4, 7, 10]


def test_bytes_come_and_go_as_documented() -> None:
    cost = StageCost(input_bytes=1, weight_bytes=10, gradient_bytes=100, base_bytes=1000)
    costs = PipelineCosts((cost,))
    split = from_csv("0F0,0F1,0I0,0W0,0I1,0W1\n", "x")
    assert saved_bytes(split, costs) == ((1011, 1022, 1122, 1121, 1111, 1110),)
    assert saved_bytes(from_csv("0F0,0B0\n", "x"), costs) == ((1011, 1111),)


def test_memory_of_1f1b_and_gpipe() -> None:
    costs = equal_stages(4)
    assert simulate_pipeline(one_forward_one_backward(4, 9), costs).peak_bytes == (4, 3, 2, 1)
    assert simulate_pipeline(zero_bubble_h1(4, 9), costs).peak_bytes == (4, 4, 4, 4)
    assert simulate_pipeline(gpipe(4, 9), costs).peak_bytes == (9, 9, 9, 9)


def test_a_deadlock_names_where_each_rank_is() -> None:
    crossed = Schedule(
        "crossed",
        (0, 1),
        2,
        (
            (Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1)),
            (Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), Action(1, "B", 1)),
        ),
    )
    with pytest.raises(Deadlock, match="rank 0 at 0B0; rank 1 at 1F1") as error:
        simulate_pipeline(crossed, equal_stages(2))
    assert error.value.stuck == {0: 1, 1: 1}


def test_costs_of_other_stages() -> None:
    with pytest.raises(UserError, match="of 3 stages, the schedule has 2"):
        simulate_pipeline(gpipe(2, 1), equal_stages(3))


def test_nothing_to_do_takes_no_time() -> None:
    timeline = simulate_pipeline(Schedule("none", (0,), 1, ((),)), equal_stages(1))
    assert (timeline.makespan, timeline.spans, timeline.bubble) == (0, (0,), 0)


# Steps that begin where others end


@given(partly_trained())
def test_a_period_is_between_the_busiest_rank_and_a_step_from_a_barrier_on(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    _, schedule, costs = pipeline
    timeline = simulate_pipeline(schedule, costs)
    period = pipeline_period(schedule, costs)
    busiest = max(map(sum, zip(timeline.busy, timeline.updates, strict=True)))
    assert busiest <= period * (1 + 1e-6)
    assert period <= timeline.step_seconds * (1 + 1e-6)


@given(partly_trained())
def test_a_period_is_that_of_steps_in_one_long_schedule(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    """Whose updates and exchanges take no time: those have no place in the middle of a schedule."""
    schedule, _, costs = pipeline
    stages = tuple(replace(stage, update=0.0, exchange=0.0) for stage in costs.stages)
    costs = replace(costs, stages=stages, memory_limit=None)

    def seconds(steps: int) -> float:
        many = replace(
            schedule,
            microbatches=steps * schedule.microbatches,
            actions=tuple(
                tuple(
                    Action(stage, kind, step * schedule.microbatches + microbatch)
                    for step in range(steps)
                    for stage, kind, microbatch in actions
                )
                for actions in schedule.actions
            ),
        )
        return simulate_pipeline(many, costs).makespan

    first, steps = 60, 60  # a multiple of all numbers of steps after which times may repeat
    in_the_long_run = (seconds(first + steps) - seconds(first)) / steps
    assert pipeline_period(schedule, costs) == pytest.approx(in_the_long_run, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16)])
def test_the_period_of_zb_h2_has_no_bubble(ranks: int, microbatches: int) -> None:
    """The ranks of a step from a barrier on end one F after the other; all others wait then."""
    equal = equal_stages(ranks)
    costs = replace(equal, stages=tuple(replace(each, update=0.5) for each in equal.stages))
    schedule = zero_bubble_h2(ranks, microbatches)
    assert simulate_pipeline(schedule, costs).step_seconds == 3 * microbatches + ranks - 1 + 0.5
    assert pipeline_period(schedule, costs) == 3 * microbatches + 0.5
    one_f_one_b = one_forward_one_backward(ranks, microbatches)  # rank 0 begins first, ends last
    seconds = simulate_pipeline(one_f_one_b, costs).step_seconds
    assert pipeline_period(one_f_one_b, costs) == seconds
