"""What the tasks of a Slurm step start between them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Process
from ooodist.launcher.slurm.host import TaskHost
from ooodist.launcher.slurm.processes import processes
from ooodist.launcher.slurm.task import Task, first_port
from tests.jobs import needs_built

TASKS, JOB = 3, 98
# What must be the same for all ranks, and has the job's first port in it.
MEETING = {
    "collective": "TF_CONFIG",
    "horovod": "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "byteps": "DMLC_PS_ROOT_PORT",
}
HELPERS = {"collective": [], "horovod": [], "byteps": ["scheduler", "server 0"]}


@pytest.mark.parametrize("engine", MEETING)
def test_each_process_is_started_once_and_all_meet(engine: str) -> None:
    needs_built(engine)
    started: list[Process] = []
    with Cleaner() as cleaner, ExitStack() as resources:
        for rank in range(TASKS):
            task = Task(rank, rank, 0, ["localhost"], [TASKS], JOB)
            started += processes(engine, ["train"], task, cleaner, resources)
    labels = [each.label for each in started]
    assert sorted(labels) == sorted([*map(str, range(TASKS)), *HELPERS[engine]])
    assert labels.index("0") == len(HELPERS[engine])  # which start before
    for each in started:
        assert str(first_port(JOB)) in each.environment[MEETING[engine]]


def test_all_know_the_hosts_and_ports_of_all() -> None:
    task = Task(2, 0, 1, ["gpu1", "gpu2"], [2, 1], JOB)
    hosts = [TaskHost(task=task, number=number) for number in range(2)]
    ranks = [host for host in hosts for _ in range(task.tasks[host.number])]
    with ExitStack() as resources:
        found = [(host.known_as, host.reserve_port(resources)) for host in ranks]
    first = first_port(JOB)
    assert found == [("gpu1", first), ("gpu1", first + 1), ("gpu2", first)]
    assert [host.is_here for host in hosts] == [False, True]
