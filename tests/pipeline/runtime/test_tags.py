"""Tags of messages: small, and different for what two ranks send each other."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

from ooodist.errors import UserError
from ooodist.pipeline.runtime.tags import check_tags, message_tags
from ooodist.planner.pipeline.actions import Kind, Schedule
from ooodist.planner.pipeline.named import schedules

PROMISED = 32_767  # the least that MPI has to allow


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.interleaved(64, 128, 2),
        schedules.zero_bubble_v(4, 6),
        schedules.interleaved(2, 4, 3),
        schedules.gpipe(1, 2),
    ],
    ids=["64 ranks x 2 x 128", "zb_v", "two ranks", "one rank"],
)
def test_messages_of_two_ranks_have_tags_of_their_own(schedule: Schedule) -> None:
    tags = message_tags(schedule)
    check_tags(tags, PROMISED)
    assert len(tags) == 2 * (schedule.stages - 1)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (stage, made), those in tags.items():
        of = stage - 1 if made == Kind.F else stage + 1
        sent[schedule.rank_of[of], schedule.rank_of[stage]] += those
        assert len(those) == schedule.microbatches
    for numbers in sent.values():
        assert len(set(numbers)) == len(numbers)
    assert set(itertools.chain(*sent.values())) == set(
        range(max(map(len, sent.values()), default=0))
    )


def test_more_than_there_are_is_refused() -> None:
    tags = message_tags(schedules.gpipe(2, 8))
    check_tags(tags, 7)
    with pytest.raises(UserError, match=r"send each other 8 messages a step, .* only 7 apart"):
        check_tags(tags, 6)
