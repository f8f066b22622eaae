"""Assigns MPI tags, by which the messages of a step are told apart."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import Kind, Schedule

Tags = Mapping[tuple[int, str], range]


def message_tags(schedule: Schedule) -> Tags:
    """The tags of all micro-batches, by (stage that needs the message, kind).

    They differ among the messages from one rank to another; other pairs of ranks reuse them.
    """
    tags: dict[tuple[int, str], range] = {}
    next_tags: Counter[tuple[int, int]] = Counter()
    rank_of = schedule.rank_of
    for before, behind in itertools.pairwise(range(schedule.stages)):
        for of, to, made in ((before, behind, Kind.F), (behind, before, Kind.I)):
            pair = rank_of[of], rank_of[to]
            tags[to, made] = range(next_tags[pair], next_tags[pair] + schedule.microbatches)
            next_tags[pair] += schedule.microbatches
    return tags


def check_tags(tags: Tags, largest: int) -> None:
    """Raises UserError if a tag exceeds the largest that MPI allows."""
    needed = max((those[-1] for those in tags.values()), default=0)
    if needed > largest:
        raise UserError(
            f"two ranks send each other {needed + 1} messages a step, but this MPI tells only "
            f"{largest + 1} apart; take fewer micro-batches, or fewer chunks a rank"
        )
