"""Actions and schedules as text."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

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
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.named.schedules import gpipe, zero_bubble_v
from tests.planner.pipelines import partly_trained, schedules

TWO_RANKS = """\
0F0,0I0,0W0
1F0,1I0,1W0
"""
# As PyTorch's _dump_csv writes them: the second one, with what its runtime adds.
OF_PYTORCH = (
    "0F0,0F1,,0I0,0W0,,0B1\r\n,1F0,1I0,1W0,1F1,1B1,\r\n",
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0W0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
    "1UNSHARD,1RECV_F0,1RECV_F1,1F0,1I0,1SEND_B0,1W0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\r\n",
)


@given(st.integers(0, 999), st.sampled_from((*COMPUTE_KINDS, *TRANSFER_KINDS)), st.integers(0, 999))
def test_an_action_is_what_its_text_says(stage: int, kind: str, microbatch: int) -> None:
    action = Action(stage, kind, microbatch)
    assert parse_action(str(action)) == action
    assert parse_action(f" {action} ") == action


def test_actions_look_as_in_the_documentation() -> None:
    assert str(Action(2, "F", 0)) == "2F0"
    assert parse_action("3SEND_F1") == Action(3, "SEND_F", 1)
    assert parse_action("10B12") == Action(10, "B", 12)


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
    assert to_csv(with_transfers(schedule)) == (
        "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n"
    )


@pytest.mark.parametrize("text", OF_PYTORCH)
def test_a_dump_of_pytorch(text: str) -> None:
    schedule = from_csv(text, "dump.csv")
    assert to_csv(schedule) == "0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1W0,1F1,1B1\n"
    assert (schedule.rank_of, schedule.microbatches) == ((0, 1), 2)
    check(schedule)


def test_a_dump_of_pytorch_in_which_actions_overlap() -> None:
    """As those of its ScheduleDualPipeV."""
    text = "0F0,3F0,(0F1;3B0)OVERLAP_F_B,,3F1,0B0,3B1,0B1\r\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\r\n"
    schedule = from_csv(text, "dump.csv")
    assert " ".join(map(str, schedule.actions[0])) == "0F0 3F0 0F1 3B0 3F1 0B0 3B1 0B1"
    assert schedule.rank_of == (0, 1, 1, 0)


@st.composite
def dumps(draw: DrawFn) -> tuple[Schedule, str]:
    """A schedule, and a text that PyTorch could write of it."""
    schedule = draw(schedules())
    rows = []
    for actions in (with_transfers(schedule) if draw(st.booleans()) else schedule).actions:
        row = list(map(str, actions))
        for more in draw(st.lists(st.sampled_from(["", "0UNSHARD", "1RESHARD", "0REDUCE_GRAD"]))):
            row.insert(draw(st.integers(0, len(row))), more)
        rows.append(",".join(row))
    return schedule, "".join(f"{row}\r\n" for row in rows)


@given(dumps())
def test_dumps_of_pytorch_are_read_as_what_they_are(dump: tuple[Schedule, str]) -> None:
    schedule, text = dump
    read = from_csv(text, schedule.name)
    assert read == schedule
    assert from_csv(to_csv(read), schedule.name) == schedule
    for cell in to_csv(read).replace("\n", ",").split(","):
        assert re.fullmatch(r"(\d+[FIWB]\d+)?", cell)


@given(schedules())
def test_the_letters_of_earlier_versions_are_refused(schedule: Schedule) -> None:
    text = to_csv(schedule).replace("B", "BW").replace("I", "B")
    with pytest.raises(UserError, match=r"earlier versions B was .*: write I for their B"):
        check(from_csv(text, "old.csv"))


@given(st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_csv_keeps_a_schedule(ranks: int, microbatches: int, transfers: bool) -> None:
    schedule = zero_bubble_v(ranks, microbatches)
    text = to_csv(with_transfers(schedule) if transfers else schedule)
    assert from_csv(text, schedule.name) == schedule


def test_empty_cells_do_not_count() -> None:
    assert from_csv("0F0,,0B0,\n\n1F0, ,1B0\n", "x").actions == (
        (Action(0, "F", 0), Action(0, "B", 0)),
        (Action(1, "F", 0), Action(1, "B", 0)),
    )


def test_errors_of_csv_name_the_cell() -> None:
    with pytest.raises(UserError, match=r"schedule bad\.csv, rank 1, cell 2: action '1X0'"):
        from_csv("0F0\n1F0,1X0\n", "bad.csv")
    with pytest.raises(UserError, match="stage 0 is on rank 0 and, in cell 1, on rank 1"):
        from_csv("0F0\n0B0\n", "bad.csv")
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
    assert to_csv(schedule) == "0F0\n1F0,1I0,1W0\n"
    assert to_csv(with_transfers(schedule)) == "0F0,0SEND_F0\n1RECV_F0,1F0,1I0,1W0\n"
    assert (schedule.first_trained, schedule.microbatches, schedule.rank_of) == (1, 1, (0, 1))


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
        assert from_csv(to_csv(each), each.name) == schedule


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


def test_what_spreadsheets_add() -> None:
    expected = from_csv("0F0,0B0\n1F0,1B0\n", "s")
    assert from_csv("\ufeff0F0,0B0\r\n1F0,1B0\r\n,\r\n\r\n", "s") == expected


def test_a_cell_that_is_too_long_for_csv() -> None:
    with pytest.raises(UserError, match=r"schedule s is not a CSV file .field larger"):
        from_csv("0F0," + "x" * 140_000, "s")
