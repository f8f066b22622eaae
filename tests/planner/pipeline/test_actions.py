"""Actions and schedules as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import (
    COMPUTE_KINDS,
    TRANSFER_KINDS,
    Action,
    Schedule,
    from_csv,
    parse_action,
    to_csv,
    trained_from,
    without_transfers,
)
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.schedules import gpipe, zero_bubble_v
from tests.planner.pipelines import partly_trained

TWO_RANKS = """\
0F0,0SEND_F0,0RECV_B0,0B0,0W0
1RECV_F0,1F0,1B0,1SEND_B0,1W0
"""


@settings(deadline=None)
@given(st.integers(0, 999), st.sampled_from((*COMPUTE_KINDS, *TRANSFER_KINDS)), st.integers(0, 999))
def test_an_action_is_what_its_text_says(stage: int, kind: str, microbatch: int) -> None:
    action = Action(stage, kind, microbatch)
    assert parse_action(str(action)) == action
    assert parse_action(f" {action} ") == action


def test_actions_look_as_in_the_documentation() -> None:
    assert str(Action(2, "F", 0)) == "2F0"
    assert parse_action("3SEND_F1") == Action(3, "SEND_F", 1)
    assert parse_action("10BW12") == Action(10, "BW", 12)


@pytest.mark.parametrize("text", ["", "F0", "2F", "2G0", "2 F 0", "-1F0", "2F0x", "2SEND_W0"])
def test_what_is_no_action_is_named(text: str) -> None:
    with pytest.raises(UserError, match="write stage, kind and micro-batch") as error:
        parse_action(text)
    assert repr(text) in str(error.value)


def test_csv_of_two_ranks() -> None:
    schedule = from_csv(TWO_RANKS, "two.csv")
    assert (schedule.rank_of, schedule.microbatches) == ((0, 1), 1)
    assert (schedule.stages, schedule.ranks) == (2, 2)
    assert to_csv(schedule) == TWO_RANKS


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_csv_keeps_a_schedule(ranks: int, microbatches: int, transfers: bool) -> None:
    schedule = zero_bubble_v(ranks, microbatches)
    if transfers:
        schedule = with_transfers(schedule)
    again = from_csv(to_csv(schedule), schedule.name)
    assert again == schedule


def test_empty_cells_do_not_count() -> None:
    assert from_csv("0F0,,0BW0,\n\n1F0, ,1BW0\n", "x").actions == (
        (Action(0, "F", 0), Action(0, "BW", 0)),
        (Action(1, "F", 0), Action(1, "BW", 0)),
    )


def test_errors_of_csv_name_the_cell() -> None:
    with pytest.raises(UserError, match=r"schedule bad\.csv, rank 1, cell 2: action '1X0'"):
        from_csv("0F0\n1F0,1X0\n", "bad.csv")
    with pytest.raises(UserError, match="stage 0 is on rank 0 and, in cell 1, on rank 1"):
        from_csv("0F0\n0BW0\n", "bad.csv")
    with pytest.raises(UserError, match="stage 1 is on no rank"):
        from_csv("0F0\n2F0\n", "bad.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,99999999999F0", "has a stage of 11 digits"),
        ("0F0,0F" + "9" * 5000, "has a micro-batch of 5000 digits"),
        ("0F0,999999999F0", "stage 1 is on no rank; .* it has stage 999999999"),
        ("0F0,0F999999999", "micro-batch 1 is nowhere; .* it has micro-batch 999999999"),
    ],
)
def test_large_numbers_take_no_memory(text: str, message: str) -> None:
    with pytest.raises(UserError, match=f"schedule big.csv.*{message}"):
        from_csv(text, "big.csv")


@pytest.mark.parametrize("make", [gpipe, zero_bubble_v])
def test_more_actions_than_a_machine_can_hold_are_refused(make: Callable[..., Schedule]) -> None:
    with pytest.raises(UserError, match=r"1000000000 micro-batches .* at most"):
        make(4, 1_000_000_000)


def test_an_empty_file_is_no_schedule() -> None:
    with pytest.raises(UserError, match=r"schedule none\.csv has no actions"):
        from_csv("\n", "none.csv")


def test_two_ranks_of_which_one_trains() -> None:
    schedule = trained_from(from_csv(TWO_RANKS, "two.csv"), 1)
    assert to_csv(schedule) == "0F0,0SEND_F0\n1RECV_F0,1F0,1B0,1W0\n"
    assert (schedule.first_trained, schedule.microbatches, schedule.rank_of) == (1, 1, (0, 1))


@settings(deadline=None)
@given(partly_trained())
def test_stages_before_the_first_that_trains_only_run_forward(
    pipeline: tuple[Schedule, Schedule, PipelineCosts],
) -> None:
    full, schedule, _ = pipeline
    first = schedule.first_trained
    assert full.first_trained == 0
    if first == 0:
        assert schedule == full
    for before, after in zip(full.actions, schedule.actions, strict=True):
        assert after == tuple(a for a in before if a.kind == "F" or a.stage >= first)
    assert trained_from(schedule, first) == schedule
    sent = with_transfers(schedule)
    assert trained_from(with_transfers(full), first) == sent
    assert without_transfers(sent) == schedule
    for each in (schedule, sent):
        assert from_csv(to_csv(each), each.name) == each


def test_the_first_stage_that_trains_is_one_of_them() -> None:
    for first in (-1, 4):
        with pytest.raises(UserError, match=f"trains is {first}; .* 4 stages, from 0 to 3"):
            trained_from(zero_bubble_v(2, 1), first)


def test_stages_that_do_not_train_cannot_be_made_to() -> None:
    with pytest.raises(UserError, match="before stage 2, so stage 1 cannot train"):
        trained_from(trained_from(gpipe(3, 2), 2), 1)
    nothing = from_csv("0F0\n1F0\n", "x")
    assert nothing.first_trained == 2
    with pytest.raises(UserError, match="stage 1 cannot train"):
        trained_from(nothing, 1)
