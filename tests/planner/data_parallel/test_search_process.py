"""The search in a process of its own finds what it finds here, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.search import Limits, plans_to_try
from ooodist.planner.data_parallel.search_process import Request, SearchProcess
from tests.planner.chains import chain_costs

COSTS = chain_costs([4096] * 4, forward=0.1, output_gradient=0.1, weight_gradient=0.1)
NETWORK = Network("any", 2, latency=1e-3, fixed=1e-3, seconds_per_byte=5e-5)
LIMITS = Limits(steps_per_execution=2, evaluations=100)
QUICK = Request(COSTS, NETWORK, LIMITS)
ENDLESS = replace(QUICK, limits=Limits(steps_per_execution=8, evaluations=10**9))

PARENT = """
import sys, time
from tests.planner.data_parallel.test_search_process import ENDLESS, SearchProcess
search = SearchProcess(ENDLESS)
print(search._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def searches() -> Iterator[list[SearchProcess]]:
    begun: list[SearchProcess] = []
    yield begun
    for each in begun:
        each.close()


def wait_until(is_so: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_finds_what_is_found_here(searches: list[SearchProcess]) -> None:
    searches.append(SearchProcess(QUICK))
    wait_until(searches[0].is_done)
    assert list(searches[0].answer().plans) == plans_to_try(COSTS, NETWORK, limits=LIMITS)


def test_it_says_why_there_is_no_plan(searches: list[SearchProcess]) -> None:
    costs, limits = replace(COSTS, base_bytes=30), replace(LIMITS, memory_bytes=1)
    with pytest.raises(UserError) as here:
        plans_to_try(costs, NETWORK, limits=limits)
    searches.append(SearchProcess(Request(costs, NETWORK, limits)))
    wait_until(searches[0].is_done)
    with pytest.raises(UserError) as there:
        searches[0].answer()
    assert str(there.value) == str(here.value)


def test_it_says_how_a_search_ended_that_said_nothing(searches: list[SearchProcess]) -> None:
    searches.append(SearchProcess(ENDLESS))
    searches[0]._process.kill()
    wait_until(searches[0].is_done)
    with pytest.raises(UserError, match="exit code -9"):
        searches[0].answer()


def test_closing_it_leaves_nothing() -> None:
    search = SearchProcess(ENDLESS)
    folder = Path(search._folder.name)
    assert folder.is_dir()
    assert not search.is_done()
    search.close()
    assert search.is_done()
    assert not folder.exists()


def test_it_takes_what_the_training_leaves(searches: list[SearchProcess]) -> None:
    searches.append(SearchProcess(ENDLESS))
    pid = searches[0]._process.pid
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)


def test_it_ends_with_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert runs(child)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not runs(child))


def test_it_needs_no_tensorflow() -> None:
    """Which would take seconds, and memory beside the training."""
    module = "ooodist.planner.data_parallel.search_process"
    program = f"import sys, {module}; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
