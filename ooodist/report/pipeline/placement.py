"""Shows on which host each rank runs, as a table and as CSV."""

from __future__ import annotations

from collections import defaultdict

from ooodist.report.pipeline.outcomes import Comparison, Simulated
from ooodist.report.tables import aligned


def text(comparison: Comparison, simulated: Simulated) -> str:
    """A line for each host and replica: the ranks there, and their stages.

    Ranks are numbered as in a job: pipeline after pipeline.
    """
    rank_of = simulated.plan.schedule.rank_of
    lines: list[tuple[str, ...]] = [("host", "replica", "ranks", "stages")]
    for (host, replica), positions in sorted(_positions(comparison).items()):
        first = replica * comparison.setting.ranks
        stages = [stage for stage, position in enumerate(rank_of) if position in positions]
        ranks = [first + position for position in positions]
        lines.append((str(host), str(replica), _joined(ranks), _joined(stages)))
    return aligned(lines, left=(0, 2, 3))


def csv_rows(comparison: Comparison) -> list[dict[str, object]]:
    """A row for each rank, in their order."""
    ranks = comparison.setting.ranks
    rows = sorted(
        (replica * ranks + position, replica, position, host)
        for (host, replica), positions in _positions(comparison).items()
        for position in positions
    )
    names = ("rank", "replica", "position", "host")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _positions(comparison: Comparison) -> dict[tuple[int, int], list[int]]:
    """The positions of each replica on each host."""
    placement, setting = comparison.placement, comparison.setting
    assert placement is not None
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for replica in range(setting.replicas):
        for position in range(setting.ranks):
            found[placement.host(replica, position), replica].append(position)
    return found


def _joined(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))
