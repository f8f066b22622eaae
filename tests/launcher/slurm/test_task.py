"""The place of a task, from the variables of srun."""

import json
from contextlib import ExitStack
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.engines.kinds.collective import cluster
from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host
from ooodist.launcher.slurm import task as module
from ooodist.launcher.slurm.__main__ import main
from ooodist.launcher.slurm.addresses import host_of, interface_of
from ooodist.launcher.slurm.processes import processes
from ooodist.launcher.slurm.task import Task, first_port, task_of, tasks_per_host

# Task 2 of three: the second host's only one.
STEP = {
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_NODELIST": "gpu[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def expand(text: str) -> list[str]:
    """As ``scontrol`` does; that it does is shown by real jobs."""
    assert text == "gpu[1-2]"
    return ["gpu1", "gpu2"]


def refused(**changed: str) -> str:
    """What is said about these variables."""
    with pytest.raises(UserError) as caught:
        task_of(STEP | changed, expand)
    return str(caught.value)


def test_place() -> None:
    task = task_of(STEP, expand)
    assert task == Task(2, 0, 1, ["gpu1", "gpu2"], [2, 1], 1234)
    assert task.is_first_of_host


def test_wrong_variables_are_named() -> None:
    assert "SLURM_LOCALID is 'x'" in refused(SLURM_LOCALID="x")
    assert "SLURM_STEP_TASKS_PER_NODE is '2(x'" in refused(SLURM_STEP_TASKS_PER_NODE="2(x")
    assert "has 2 hosts" in refused(SLURM_STEP_TASKS_PER_NODE="1(x3)")
    assert "--distribution=block" in refused(SLURM_PROCID="1")
    assert "at most 64" in refused(SLURM_STEP_TASKS_PER_NODE="65,1", SLURM_PROCID="65")
    with pytest.raises(UserError, match="no task of a Slurm step; start it by srun"):
        task_of({}, expand)


def test_missing_scontrol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="scontrol is not on PATH"):
        module.host_names("gpu[1-2]")


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_counts_are_read_as_slurm_writes_them(counts: list[int]) -> None:
    runs = [(count, len(list(group))) for count, group in groupby(counts)]
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert tasks_per_host(text) == counts


@given(st.integers(0, 10**7), st.integers(1, 186))
def test_ports_of_near_jobs_differ_and_are_never_handed_out(job: int, later: int) -> None:
    assert 20_000 <= first_port(job) <= 32_768 - 64
    assert abs(first_port(job) - first_port(job + later)) >= 64


def test_tasks_of_one_host_stay_inside_of_it() -> None:
    assert host_of(Task(0, 0, 0, ["anything"], [2], 7)) == Host()


def test_names_that_lead_nowhere_are_refused() -> None:
    with pytest.raises(UserError, match=r"localhost is 127\.0\.0\.1 on localhost itself"):
        host_of(Task(0, 0, 0, ["localhost", "other"], [1, 1], 7))
    with pytest.raises(UserError, match=r"the host no-such\.invalid of this Slurm job"):
        host_of(Task(0, 0, 0, ["no-such.invalid", "other"], [1, 1], 7))
    assert interface_of("127.0.0.1", "here") == "lo"
    with pytest.raises(UserError, match=r"here is 192\.0\.2\.1, which no network interface"):
        interface_of("192.0.2.1", "here")


def test_collective_gets_the_address_of_each_rank_and_a_port_that_is_free() -> None:
    task = Task(1, 1, 0, ["localhost"], [2], 99)
    with Cleaner() as cleaner, ExitStack() as resources:
        (worker,) = processes("collective", ["train"], task, cleaner, resources)
        port = first_port(99)
        addresses = [f"localhost:{port}", f"localhost:{port + 1}"]
        assert cluster(worker.environment) == (addresses, 1)
        assert json.loads(worker.environment["TF_CONFIG"])["task"]["type"] == "worker"
        assert worker.environment["OOODIST_LOCAL_SIZE"] == "2"
        with Host().bound_socket() as taken:
            taken.listen()
            other = taken.getsockname()[1] - first_port(99)
            wrong = Task(other, other, 0, ["localhost"], [other + 1], 99)
            with pytest.raises(UserError, match=r"port \d+ of localhost .*Address already in use"):
                processes("collective", ["train"], wrong, cleaner, resources)


def test_wrong_use(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    assert main(["--engine", "horovod", "--", "true"]) == 2
    assert "SLURM_PROCID is not set" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--engine", "horovod"])
    assert "no command to start" in capsys.readouterr().err
