"""What actions wait for, and the transfers that follow from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.actions import (
    COMPUTE_KINDS,
    Kind,
    Schedule,
    parse_action,
    without_transfers,
)
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import (
    SPLIT_KINDS,
    needs_of,
    receiver_of,
    result_of,
    users_of,
    with_transfers,
)
from ooodist.planner.pipeline.named.schedules import zero_bubble_v
from ooodist.planner.pipeline.simulate import simulate_pipeline
from tests.planner.pipelines import partly_trained, pipelines

ALL_OR_SPLIT = st.sampled_from((SPLIT_KINDS, COMPUTE_KINDS, (Kind.F, Kind.B)))


@given(st.integers(1, 6), ALL_OR_SPLIT)
def test_who_waits_for_an_action_is_who_needs_its_result(
    stages: int, kinds: tuple[str, ...]
) -> None:
    parts = [(stage, kind) for stage in range(stages) for kind in kinds]
    for stage, kind in parts:
        made = stage, result_of(kind)
        users = {part for part in parts if made in needs_of(*part, stages)}
        assert set(users_of(stage, kind, stages, kinds=kinds)) == users
        others = {user for user, _ in users} - {stage}
        assert len(others) <= 1
        assert receiver_of(stage, kind, stages) == next(iter(others), None)


@given(pipelines())
def test_what_is_needed_last_is_made_last(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    schedule, costs = pipeline
    ends = {
        (run.action.stage, result_of(run.action.kind), run.action.microbatch): run.end
        for runs in simulate_pipeline(schedule, costs).runs
        for run in runs
    }
    for stage, kind, microbatch in (a for actions in schedule.actions for a in actions):
        made = [ends[*need, microbatch] for need in needs_of(stage, kind, schedule.stages)]
        assert made == sorted(made)


def test_transfers_are_between_ranks_only() -> None:
    """In a V the last rank has two stages that follow each other."""
    schedule = with_transfers(zero_bubble_v(2, 1))
    assert {str(action) for action in schedule.actions[1]} == {
        "1RECV_F0",
        "1F0",
        "2F0",
        "2SEND_F0",
        "2RECV_B0",
        "2I0",
        "1I0",
        "1SEND_B0",
        "2W0",
        "1W0",
    }
    assert without_transfers(schedule) == zero_bubble_v(2, 1)
    assert with_transfers(schedule) == schedule


def test_one_rank_sends_nothing() -> None:
    alone = Schedule("x", (0, 0), 1, (tuple(map(parse_action, ["0F0", "1F0", "1B0", "0B0"])),))
    assert with_transfers(alone) == alone


@given(partly_trained())
def test_every_send_has_its_receive(pipeline: tuple[Schedule, Schedule, PipelineCosts]) -> None:
    _, schedule, _ = pipeline
    actions = [a for those in with_transfers(schedule).actions for a in those]
    assert len(set(actions)) == len(actions)
    forward = {(a.stage + 1, a.microbatch) for a in actions if a.kind == "SEND_F"}
    back = {(a.stage - 1, a.microbatch) for a in actions if a.kind == "SEND_B"}
    assert forward == {(a.stage, a.microbatch) for a in actions if a.kind == "RECV_F"}
    assert back == {(a.stage, a.microbatch) for a in actions if a.kind == "RECV_B"}
    assert all(stage >= schedule.first_trained for stage, _ in back)
