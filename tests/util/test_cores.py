"""Each of the workers that share a host has its share of the cores."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.util import cores
from ooodist.util.cores import shares, use_own_cores
from tests.jobs import needs_built, run_job

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, set[int]]]:
    """The cores of this process (0) and of the first one (1), on a machine that has eight."""
    places = {0: set(range(8)), 1: set(range(8))}
    monkeypatch.delenv(cores.VARIABLE, raising=False)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "_SYSTEM", Path("/nowhere"))
    monkeypatch.setattr(cores, "stop_spinning", lambda: True)  # not in the process of the tests
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: places[process])

    def bind(thread: int, own: Iterable[int]) -> None:
        places[thread] = set(own)
        if thread == threading.get_native_id():
            places[0] = set(own)

    monkeypatch.setattr(os, "sched_setaffinity", bind)
    yield places
    for name in THREADS:  # what was set, monkeypatch does not know
        os.environ.pop(name, None)


@pytest.mark.parametrize(
    ("local_rank", "local_size", "own"),
    [(0, 2, {0, 1, 2, 3}), (1, 2, {4, 5, 6, 7}), (2, 4, {4, 5}), (7, 8, {7})],
)
def test_all_threads_of_a_worker_are_on_its_cores(
    bound: dict[int, set[int]], local_rank: int, local_size: int, own: set[int]
) -> None:
    use_own_cores(local_rank, local_size)
    threads = {int(thread) for thread in os.listdir("/proc/self/task")}
    assert {thread: bound.get(thread) for thread in threads} == dict.fromkeys(threads, own)
    assert bound[1] == set(range(8))
    assert "TF_NUM_INTRAOP_THREADS" not in os.environ  # TensorFlow counts the cores
    assert os.environ.get("TF_NUM_INTEROP_THREADS") == ("2" if len(own) == 1 else None)


def test_a_thread_that_ends_meanwhile(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(thread: int, own: tuple[int, ...]) -> None:
        if thread == 11:
            raise ProcessLookupError
        bound[thread] = set(own)

    monkeypatch.setattr(cores, "threads", lambda: (10, 11, 12))
    monkeypatch.setattr(os, "sched_setaffinity", bind)
    use_own_cores(0, 2)
    assert bound[10] == bound[12] == {0, 1, 2, 3}
    assert 11 not in bound


@pytest.mark.parametrize(("local_size", "threads"), [(3, "3"), (5, "2"), (9, "1"), (16, "1")])
def test_what_cannot_be_divided_evenly(
    bound: dict[int, set[int]], local_size: int, threads: str
) -> None:
    before = dict(bound)
    use_own_cores(local_size - 1, local_size)
    assert bound == before
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == threads
    assert "TF_NUM_INTEROP_THREADS" not in os.environ


@pytest.mark.parametrize("local_size", [1, None])
def test_a_worker_that_is_alone_or_does_not_know(
    bound: dict[int, set[int]], local_size: int | None
) -> None:
    before = dict(bound)
    use_own_cores(0, local_size)
    assert bound == before
    assert not set(THREADS) & os.environ.keys()


def test_the_launchers_choice_of_cores_stays(bound: dict[int, set[int]]) -> None:
    bound[0] = {2, 3, 4, 5}
    before = dict(bound)
    use_own_cores(0, 2)
    assert bound == before


@pytest.mark.parametrize("variable", ["own", "all"])
@pytest.mark.parametrize("local_size", [1, 2, None])
def test_on_one_core_a_second_thread_starts_exchanges(
    bound: dict[int, set[int]],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    local_size: int | None,
) -> None:
    monkeypatch.setenv("OOODIST_CORES", variable)
    bound[0] = {3}  # by mpirun --bind-to core, a batch system, an emulated host
    use_own_cores(0, local_size)
    assert bound[0] == {3}
    assert os.environ["TF_NUM_INTEROP_THREADS"] == "2"


def test_where_the_first_process_is_hidden(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def affinity(process: int) -> set[int]:
        if process == 1:
            raise PermissionError
        return bound[process]

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    before = dict(bound)
    use_own_cores(0, 2)
    assert bound == before


def test_the_users_numbers_of_threads_stay(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREADS:
        monkeypatch.setenv(name, "5")
    use_own_cores(0, 3)
    use_own_cores(0, 8)
    assert [os.environ[name] for name in THREADS] == ["5", "5"]


@pytest.mark.parametrize(("value", "share"), [("own", True), ("all", False)])
def test_the_variable(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch, value: str, share: bool
) -> None:
    monkeypatch.setenv("OOODIST_CORES", value)
    use_own_cores(0, 2)
    assert (len(bound) > 2) == share


@pytest.mark.parametrize("local_size", [1, 2])
def test_another_value_of_the_variable(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch, local_size: int
) -> None:
    monkeypatch.setenv("OOODIST_CORES", "4")
    with pytest.raises(UserError, match=r"OOODIST_CORES is '4'; it must be own .* or all"):
        use_own_cores(0, local_size)
    assert len(bound) == 2


@pytest.mark.parametrize(
    ("local_size", "said"),
    [
        (2, "2 workers share 8 cores; this one has core(s) 0, 1, 2, 3 (OOODIST_CORES=all: each "),
        (3, "3 workers share 8 cores; this one has 3 thread(s) for an operation (OOODIST_CORES="),
    ],
)
@pytest.mark.usefixtures("bound")
def test_what_the_log_says(local_size: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ooodist"):
        use_own_cores(0, local_size)
    assert caplog.messages[0].startswith(said)


@pytest.mark.parametrize(
    ("cores_of_it", "local_size", "variable", "stopped"),
    [
        (range(8), 8, "own", True),  # a core each
        (range(8), 9, "own", True),  # less than that
        (range(8), 7, "own", False),  # two threads for an operation
        (range(8), 2, "own", False),
        (range(8), 1, "own", False),
        (range(8), None, "own", False),
        (range(8), 8, "all", False),
        ({3}, 2, "own", True),  # the launcher's choice
        ({3}, None, "own", True),
        ({3, 4}, 8, "own", False),
    ],
)
def test_threads_spin_where_there_is_more_than_one_core(
    bound: dict[int, set[int]],
    monkeypatch: pytest.MonkeyPatch,
    cores_of_it: Iterable[int],
    local_size: int | None,
    variable: str,
    stopped: bool,
) -> None:
    calls = []
    bound[0] = set(cores_of_it)
    monkeypatch.setattr(cores, "stop_spinning", lambda: calls.append("stop") or True)
    monkeypatch.setenv("OOODIST_CORES", variable)
    use_own_cores(0, local_size)
    assert calls == ["stop"] * stopped


@pytest.mark.usefixtures("bound")
def test_the_log_says_if_tensorflow_has_started_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cores, "stop_spinning", lambda: False)
    with caplog.at_level(logging.INFO, logger="ooodist"):
        use_own_cores(0, 8)
    assert "TensorFlow started before ooodist.init: its idle threads spin" in caplog.messages[-1]


@given(st.sets(st.integers(0, 200), min_size=1), st.data())
def test_shares_are_equal_and_hold_each_core_once(numbers: set[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(numbers)))
    found = shares(numbers, number)
    assert len(found) == number
    assert sorted(core for share in found for core in share) == sorted(numbers)
    sizes = {len(share) for share in found}
    assert max(sizes) - min(sizes) <= 1


def test_threads_of_a_core_and_cores_of_a_processor_stay_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cores, "_SYSTEM", tmp_path)
    for number in range(8):  # two processors of two cores; 0 and 4 are the threads of one core
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{number % 2}\n")
        (topology / "core_id").write_text(f"{number % 4 // 2}\n")
    assert shares(range(8), 2) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert shares(range(8), 4) == [(0, 4), (2, 6), (1, 5), (3, 7)]


WORKER = """
import os
import ooodist
ooodist.init()
import tensorflow as tf
tf.random.normal((64, 64)) @ tf.random.normal((64, 64))  # TensorFlow starts
places = {tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir("/proc/self/task")}
print("places", ooodist.rank(), sorted(places))
from tensorflow.python.eager import context
print("spins", not context.context().config.experimental.disable_thread_spinning)
"""


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) != 2 or os.sched_getaffinity(0) != os.sched_getaffinity(1),
    reason="for two workers that share the two cores of a machine",
)
@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps"])
def test_two_workers_of_a_job_have_a_core_each(engine: str, tmp_path: Path) -> None:
    needs_built(engine)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    first, second = sorted(os.sched_getaffinity(0))
    job = run_job(engine, 2, script)
    assert job.returncode == 0, job.stdout
    assert f"places 0 [({first},)]" in job.stdout
    assert f"places 1 [({second},)]" in job.stdout
    assert job.stdout.count("spins False") == 2


def test_the_job_ends_with_a_message_if_the_variable_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    job = run_job("collective", 2, script, variables={"OOODIST_CORES": "none"})
    assert job.returncode == 1
    assert "UserError: OOODIST_CORES is 'none'; it must be own" in job.stdout
