"""Runs the search for pipeline schedules in a process of its own, by means of
:mod:`ooodist.planner.process_beside`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ooodist.planner.pipeline.actions import Schedule, from_csv, to_csv
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.search import schedules_to_try
from ooodist.planner.process_beside import ProcessBeside, answer


@dataclass(frozen=True)
class ScheduleRequest:
    """The arguments of :func:`ooodist.planner.pipeline.search.schedules_to_try`."""

    rank_of: tuple[int, ...]
    microbatches: int
    costs: PipelineCosts


@dataclass(frozen=True)
class NamedCsv:
    """A schedule as CSV text, with its name."""

    name: str
    csv: str

    @property
    def schedule(self) -> Schedule:
        return replace(from_csv(self.csv, self.name), name=self.name)


@dataclass(frozen=True)
class FoundSchedules:
    """The schedules that a search found, the most promising one first."""

    texts: tuple[NamedCsv, ...] = ()

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(text.schedule for text in self.texts)


class ScheduleSearch(ProcessBeside[FoundSchedules]):
    """A search that runs in a process beside this one, and ends with it at the latest.

    Args:
        request: the arguments of the search.
    """

    def __init__(self, request: ScheduleRequest) -> None:
        super().__init__(__name__, request, FoundSchedules)


def _search(request: ScheduleRequest) -> FoundSchedules:
    found = schedules_to_try(request.rank_of, request.microbatches, request.costs)
    return FoundSchedules(tuple(NamedCsv(each.name, to_csv(each)) for each in found))


if __name__ == "__main__":
    sys.exit(answer(Path(sys.argv[1]), ScheduleRequest, _search))
