"""Pipeline schedules as data and as text: one list of actions for each rank.

The notation is PyTorch's (``torch.distributed.pipelining``). An action consists of a stage, a kind
and a micro-batch::

    2F0        stage 2 computes the forward pass of micro-batch 0
    2I0        ... its input gradient (dX), which needs the output gradient from stage 3
    2W0        ... its weight gradients (dW), any time after 2I0
    2B0        both as one; the input gradient is available only when all of it is done
    2SEND_F0   stage 2 sends the output of 2F0 to stage 3, which does 3RECV_F0
    2SEND_B0   stage 2 sends its input gradient to stage 1, which does 1RECV_B0

As CSV, a schedule has one line per rank::

    0F0,0I0,0W0
    1F0,1I0,1W0

With its transfers (see :func:`ooodist.planner.pipeline.dependencies.with_transfers`)::

    0F0,0SEND_F0,0RECV_B0,0I0,0W0
    1RECV_F0,1F0,1I0,1SEND_B0,1W0

If the first stages train nothing, they do only F, and the first stage that trains sends no input
gradient (see :func:`trained_from`)::

    0F0,0SEND_F0
    1RECV_F0,1F0,1I0,1W0
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ooodist.errors import UserError


class Kind:
    """The kinds of actions, as text has them."""

    F = "F"
    I = "I"  # noqa: E741 - the field's letter
    W = "W"
    B = "B"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"


COMPUTE_KINDS = (Kind.F, Kind.I, Kind.W, Kind.B)
TRANSFER_KINDS = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
MOST_MICROBATCHES = 1_000_000  # stages times micro-batches: some 500 MB of actions
MOST_DIGITS = 9  # in the number of a stage or a micro-batch
_ACTION = re.compile(rf"(\d+)({'|'.join((*COMPUTE_KINDS, *TRANSFER_KINDS))})(\d+)")
# PyTorch also writes actions for weights sharded over ranks, and pairs of overlapping actions.
_OF_SHARDED_WEIGHTS = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_OVERLAPPING = re.compile(r"\((.*)\)OVERLAP_F_B")
_OLD_BACKWARD = re.compile(r"\d+BW\d+")
OLD_LETTERS = (
    "in files of earlier versions B was the input gradient and BW both: write I for their B, and "
    "then B for their BW"
)


class Action(NamedTuple):
    """One computation or transfer of a rank.

    Attributes:
        stage: the stage it belongs to, numbered from 0.
        kind: one of COMPUTE_KINDS or TRANSFER_KINDS.
        microbatch: the micro-batch, numbered from 0.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    """Parses an action such as ``2F0``; raises UserError if the text is not one."""
    found = _ACTION.fullmatch(text.strip())
    if found is None:
        old = f"; {OLD_LETTERS}" if _OLD_BACKWARD.fullmatch(text.strip()) else ""
        raise UserError(
            f"action {text!r} is not one: write stage, kind and micro-batch, as 2F0; kinds are "
            f"{', '.join((*COMPUTE_KINDS, *TRANSFER_KINDS))}{old}"
        )
    for what, digits in (("stage", found[1]), ("micro-batch", found[3])):
        if len(digits) > MOST_DIGITS:
            raise UserError(
                f"action {text.strip()[:40]!r} has a {what} of {len(digits)} digits; "
                f"{MOST_DIGITS} are the most"
            )
    return Action(int(found[1]), found[2], int(found[3]))


@dataclass(frozen=True)
class Schedule:
    """The actions of every rank, in the order in which the rank runs them.

    Attributes:
        name: the name of the rule that made it, or of the file it was read from.
        rank_of: the rank of each stage.
        microbatches: the number of micro-batches in a step.
        actions: the actions of each rank, with or without transfers (see
            :func:`ooodist.planner.pipeline.dependencies.with_transfers`).

    Raises:
        UserError: there is no stage or no micro-batch, or there are too many.
    """

    name: str
    rank_of: tuple[int, ...]
    microbatches: int
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        check_size(self.stages, self.microbatches)

    @property
    def stages(self) -> int:
        return len(self.rank_of)

    @property
    def ranks(self) -> int:
        return len(self.actions)

    @property
    def first_trained(self) -> int:
        """The lowest stage that has an I or B; the stages before it only run forward. If no stage
        has one, this is the number of stages."""
        backward = (
            action.stage
            for actions in self.actions
            for action in actions
            if action.kind in (Kind.I, Kind.B)
        )
        return min(backward, default=self.stages)


def check_size(stages: int, microbatches: int) -> None:
    """Raises UserError unless there is at least one of each, and no more than can be planned."""
    if stages < 1 or microbatches < 1:
        raise UserError(
            "a pipeline needs at least one stage and one micro-batch, "
            f"not {stages} and {microbatches}"
        )
    if stages * microbatches > MOST_MICROBATCHES:
        raise UserError(
            f"a pipeline of {stages} stages and {microbatches} micro-batches is too large: their "
            f"product may be {MOST_MICROBATCHES} at most; take fewer of either"
        )


def to_csv(schedule: Schedule) -> str:
    """The schedule as CSV, one line per rank, as :func:`from_csv` and PyTorch read it.

    PyTorch: ``_PipelineScheduleRuntime._load_csv(file, format="compute_only")``, or
    ``"compute_comms"`` for a schedule with transfers (torch/distributed/pipelining/schedules.py).
    PyTorch does not support stages that only run forward.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([str(action) for action in actions] for actions in schedule.actions)
    return text.getvalue()


def from_csv(text: str, source: str) -> Schedule:
    """Parses a schedule from CSV text, as :func:`to_csv` and PyTorch write it.

    PyTorch: ``_dump_csv`` of its schedules, in which an empty cell is a step in which a rank idles
    (torch/distributed/pipelining/schedules.py). Sends, receives and the gathering of sharded
    weights are left out, as the transfers follow from the rest (see
    :func:`ooodist.planner.pipeline.dependencies.with_transfers`). When two actions overlap, as in
    ``(0F1;3B0)OVERLAP_F_B``, the first one written runs first.

    Args:
        text: one line per rank.
        source: where the text comes from; used in error messages and as the schedule's name.

    Raises:
        UserError: a cell is not an action, a stage is on two ranks, or a number is missing.
    """
    rank_of: dict[int, int] = {}
    lists: list[tuple[Action, ...]] = []
    for rank, cells in enumerate(_rows(text, source)):
        actions: list[Action] = []
        for number, cell in enumerate(cells, 1):
            try:
                computed = _computed(cell)
            except UserError as error:
                raise UserError(
                    f"schedule {source}, rank {rank}, cell {number}: {error}"
                ) from error
            for action in computed:
                if rank_of.setdefault(action.stage, rank) != rank:
                    raise UserError(
                        f"schedule {source}: stage {action.stage} is on rank "
                        f"{rank_of[action.stage]} and, in cell {number}, on rank {rank}; a stage "
                        "has one rank, which keeps its weights"
                    )
            actions += computed
        lists.append(tuple(actions))
    if not rank_of:
        raise UserError(f"schedule {source} has no actions: write a line for each rank, as 0F0,0B0")
    # Without gaps every number is below the count, so huge numbers cannot allocate huge lists.
    _refuse_gap(source, "stage", set(rank_of), "is on no rank; stages")
    microbatches = {action.microbatch for actions in lists for action in actions}
    _refuse_gap(source, "micro-batch", microbatches, "is nowhere; micro-batches")
    return Schedule(
        source,
        tuple(rank_of[stage] for stage in sorted(rank_of)),
        len(microbatches),
        tuple(lists),
    )


def _rows(text: str, source: str) -> list[list[str]]:
    """The cells of each line, without what spreadsheets add: a mark, and an empty end."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"))) if row]
    except csv.Error as error:  # a cell of more than 131,072 letters, say
        raise UserError(
            f"schedule {source} is not a CSV file ({error}); write a line for each rank, as 0F0,0B0"
        ) from error
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    return rows


def _computed(cell: str) -> list[Action]:
    """The compute actions of a cell. Raises UserError if it is not an action."""
    cell = cell.strip()
    if not cell or _OF_SHARDED_WEIGHTS.fullmatch(cell):
        return []
    overlapping = _OVERLAPPING.fullmatch(cell)
    actions = map(parse_action, overlapping[1].split(";") if overlapping else [cell])
    return [action for action in actions if action.kind in COMPUTE_KINDS]


def _refuse_gap(source: str, what: str, numbers: set[int], lacks: str) -> None:
    missing = next((number for number in range(len(numbers)) if number not in numbers), None)
    if missing is not None:
        raise UserError(
            f"schedule {source}: {what} {missing} {lacks} are numbered from 0 without gaps, and "
            f"it has {what} {max(numbers)}"
        )


def trained_from(schedule: Schedule, first: int) -> Schedule:
    """The schedule in which the stages before ``first`` only run forward.

    Their I, W and B are dropped, and no input gradients are sent to them.

    Raises:
        UserError: there is no such stage, or the schedule does not train it.
    """
    if not 0 <= first < schedule.stages:
        raise UserError(
            f"the first stage that trains is {first}; it must be one of the {schedule.stages} "
            f"stages, from 0 to {schedule.stages - 1}"
        )
    if first < schedule.first_trained:
        raise UserError(
            f"schedule {schedule.name} has no I or B of stages before stage "
            f"{schedule.first_trained}, so stage {first} cannot train: start from the schedule in "
            "which all stages train"
        )

    def stays(action: Action) -> bool:
        if action.kind == Kind.SEND_B:
            return action.stage > first
        return action.stage >= first or action.kind in (Kind.F, Kind.SEND_F, Kind.RECV_F)

    return replace(
        schedule, actions=tuple(tuple(filter(stays, actions)) for actions in schedule.actions)
    )


def tail_of(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The W's with which a rank's actions end; or the B, whose second half is a W."""
    if actions and actions[-1].kind == Kind.B:
        return (actions[-1],)
    start = len(actions)
    while start and actions[start - 1].kind == Kind.W:
        start -= 1
    return tuple(actions[start:])


def without_transfers(schedule: Schedule) -> Schedule:
    """The schedule without its sends and receives."""
    return replace(
        schedule,
        actions=tuple(
            tuple(action for action in actions if action.kind in COMPUTE_KINDS)
            for actions in schedule.actions
        ),
    )
