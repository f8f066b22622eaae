"""The search for plans in a separate process; see :mod:`ooodist.planner.process_beside`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import Limits, plans_to_try
from ooodist.planner.process_beside import ProcessBeside, answer


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`ooodist.planner.data_parallel.search.plans_to_try`."""

    costs: StepCosts
    network: Network
    limits: Limits


@dataclass(frozen=True)
class Found:
    """The plans that were found, each with its prediction; the most promising one first."""

    plans: tuple[Plan, ...]


class SearchProcess(ProcessBeside[Found]):
    """A search that runs beside this process, and does not outlive it.

    Args:
        request: the arguments of the search.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(__name__, request, Found)


def _search(request: Request) -> Found:
    return Found(tuple(plans_to_try(request.costs, request.network, limits=request.limits)))


if __name__ == "__main__":
    sys.exit(answer(Path(sys.argv[1]), Request, _search))
