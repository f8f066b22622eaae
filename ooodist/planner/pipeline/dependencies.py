"""The dependencies between pipeline actions, defined only here.

An arrow goes from an action to one that waits for its result, all for one micro-batch::

    stage 0     F ---------.             .--> I --> W
                |          |             |    ^
                |          '-------------|----'
                v                        |
    stage 1     F ---> I --> W           |
                       '-----------------'

So F waits for the F of the stage before; I for its own F and the I of the stage after; W for its
own I. B, which is I and W in one, waits for what I waits for and yields what I yields. Stages
before the first one that trains do F alone and get no input gradients. Between ranks, a result
travels as a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ooodist.planner.pipeline.actions import Action, Kind, Schedule, without_transfers

SPLIT_KINDS = (Kind.F, Kind.I, Kind.W)
SENDS = {Kind.F: Kind.SEND_F, Kind.I: Kind.SEND_B}  # the send of each result
RECEIVES = {Kind.F: Kind.RECV_F, Kind.I: Kind.RECV_B}


def result_of(kind: str) -> str:
    """The result of an action of this kind: Kind.F, Kind.I (for I and B), or
    Kind.W, for which no other action waits."""
    return Kind.I if kind == Kind.B else kind


# The needs of each kind: the offset of the stage that makes the result, and the result, Kind.F or
# Kind.I. The last need is met last: the stage after needs this stage's F before its own I.
_NEEDS: dict[str, tuple[tuple[int, str], ...]] = {
    Kind.F: ((-1, Kind.F),),
    Kind.I: ((0, Kind.F), (1, Kind.I)),
    Kind.B: ((0, Kind.F), (1, Kind.I)),
    Kind.W: ((0, Kind.I),),
}
# The inverse: the offset of each stage that waits for the result, and the kind that waits there.
_USERS = {
    kind: tuple(
        (-further, user)
        for user, needs in _NEEDS.items()
        for further, needed in needs
        if needed == result_of(kind)
    )
    for kind in _NEEDS
}


@cache
def needs_of(stage: int, kind: str, stages: int) -> tuple[tuple[int, str], ...]:
    """The results that an action waits for: the stage that makes each, and its kind.

    The last one arrives only after all the others.

    Args:
        stage: the stage of the action.
        kind: the kind of the action, one of COMPUTE_KINDS.
        stages: the number of stages in the pipeline.
    """
    return tuple(
        (stage + further, result)
        for further, result in _NEEDS[kind]
        if 0 <= stage + further < stages
    )


@cache
def users_of(
    stage: int,
    kind: str,
    stages: int,
    first_trained: int = 0,
    kinds: tuple[str, ...] = SPLIT_KINDS,
) -> tuple[tuple[int, str], ...]:
    """The stages and kinds of the actions that wait for the result of an action.

    Args:
        stage: the stage of the action.
        kind: the kind of the action, one of COMPUTE_KINDS.
        stages: the number of stages in the pipeline.
        first_trained: the stages before this one do F alone.
        kinds: the kinds of action that the schedule contains.
    """
    return tuple(
        (stage + further, user)
        for further, user in _USERS[kind]
        if 0 <= stage + further < stages
        and user in kinds
        and (user == Kind.F or stage + further >= first_trained)
    )


def receiver_of(stage: int, kind: str, stages: int, first_trained: int = 0) -> int | None:
    """The other stage that waits for the result of an action, or None.

    The arguments are those of :func:`users_of`.
    """
    users = users_of(stage, kind, stages, first_trained)
    return next((other for other, _ in users if other != stage), None)


def with_transfers(schedule: Schedule) -> Schedule:
    """The schedule with sends and receives between stages of different ranks.

    Each result is sent as soon as it is computed and received right before it is needed: a send
    blocks nobody.
    """
    first = schedule.first_trained
    return replace(
        schedule,
        actions=tuple(
            tuple(each for action in actions for each in _with_transfers(schedule, action, first))
            for actions in without_transfers(schedule).actions
        ),
    )


def _with_transfers(schedule: Schedule, action: Action, first: int) -> Iterator[Action]:
    """Yields the receives of an action, the action and its send; stages from ``first`` on train."""
    stage, kind, microbatch = action
    rank_of = schedule.rank_of
    for maker, needed in needs_of(stage, kind, schedule.stages):
        if rank_of[maker] != rank_of[stage]:
            yield Action(stage, RECEIVES[needed], microbatch)
    yield action
    receiver = receiver_of(stage, kind, schedule.stages, first)
    if receiver is not None and rank_of[receiver] != rank_of[stage]:
        yield Action(stage, SENDS[result_of(kind)], microbatch)
