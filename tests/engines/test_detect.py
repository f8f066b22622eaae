"""Which engine a process was started for."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import tensorflow as tf

from ooodist import engines
from ooodist.engines.detect import check_size, choose, detect
from ooodist.engines.kinds.collective import cluster
from ooodist.errors import UserError

MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
_OF_LAUNCHERS = ("OOODIST_", "HOROVOD_", "DMLC_", "OMPI_", "PMI", "MV2_", "SLURM_", "TF_CONFIG")
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
HOROVOD = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"}
BYTEPS = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "1"}


@pytest.fixture(autouse=True)
def plain_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that no launcher has started and that has no engine yet."""
    before = dict(os.environ)  # to which engines add their limits
    for variable in list(os.environ):
        if variable.startswith(_OF_LAUNCHERS):
            monkeypatch.delenv(variable)
    monkeypatch.setattr(engines, "_current", None)
    monkeypatch.setattr(engines, "_was_shut_down", False)
    yield
    monkeypatch.undo()
    for variable in os.environ.keys() - before.keys():
        del os.environ[variable]


def _tf_config(jobs: dict[str, list[str]], task: str = "worker", index: int = 0) -> dict[str, str]:
    config = {"cluster": jobs, "task": {"type": task, "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


TWO = _tf_config({"worker": ["a:1", "b:1"]}, index=1)
ONE = _tf_config({"worker": ["a:1"]})


@pytest.mark.parametrize(
    ("environ", "engine", "reason"),
    [
        ({}, "local", "no launcher"),
        ({"PATH": "/bin", "TF_CONFIG": ""}, "local", "no launcher"),
        ({"TF_CONFIG": "{}"}, "local", "no launcher"),
        (HOROVOD, "horovod", "HOROVOD_SIZE=2"),
        ({"HOROVOD_SIZE": "1"}, "horovod", "HOROVOD_SIZE=1"),
        (MPI, "horovod", "OMPI_COMM_WORLD_SIZE=4"),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, "local", "no launcher"),
        ({"PMI_SIZE": "2"}, "horovod", "PMI_SIZE=2"),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "horovod", "MV2_COMM_WORLD_SIZE=2"),
        (SRUN | {"PMIX_RANK": "1"}, "horovod", "PMIX_RANK, SLURM_STEP_NUM_TASKS=4"),
        (SRUN | MPI, "horovod", "OMPI_COMM_WORLD_SIZE=4"),  # mpirun starts its daemons by srun
        (SRUN | TWO, "collective", "TF_CONFIG with 2 workers"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, "local", "no launcher"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, "local", "no launcher"),  # salloc's shell
        (SRUN | {"SLURM_STEP_ID": "4294967290"}, "local", "no launcher"),  # the same, on a node
        ({"WORLD_SIZE": "4"}, "local", "no launcher"),
        (TORCHRUN | {"WORLD_SIZE": "1"}, "local", "no launcher"),
        (BYTEPS, "byteps", "DMLC_ROLE=worker, DMLC_NUM_WORKER=2"),
        (TWO, "collective", "TF_CONFIG with 2 workers"),
        (ONE, "local", "no launcher"),
        (HOROVOD | TWO, "horovod", "HOROVOD_SIZE=2"),
        ({"OOODIST_ENGINE": "collective"} | HOROVOD | TWO, "collective", "OOODIST_ENGINE"),
        ({"OOODIST_ENGINE": "local"}, "local", "OOODIST_ENGINE=local"),
    ],
)
def test_detects_by_environment(environ: dict[str, str], engine: str, reason: str) -> None:
    found, why = detect(environ)
    assert found == engine
    assert reason in why


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OOODIST_ENGINE": "nccl"}, "OOODIST_ENGINE is 'nccl'; it must be one of local, coll"),
        ({"HOROVOD_SIZE": "two"}, "HOROVOD_SIZE is 'two'"),
        ({"DMLC_ROLE": "worker"}, "DMLC_NUM_WORKER is ''"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG cannot be read (KeyError"),
        (_tf_config({"worker": ["a:1"]}, index=1), "task is worker 1"),
        (_tf_config({"worker": ["a:1"], "ps": ["b:1"]}, task="ps"), "task is ps 0"),
    ],
)
def test_impossible_variables(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        detect(environ)


def test_chief_is_the_first_worker() -> None:
    jobs = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    assert cluster(_tf_config(jobs, "chief")) == (["a:1", "b:1", "c:1"], 0)
    assert cluster(_tf_config(jobs, "worker", 1)) == (["a:1", "b:1", "c:1"], 2)
    assert cluster({}) is None


@pytest.mark.parametrize(
    ("engine", "environ", "workers"),
    [
        ("auto", {}, None),
        ("local", {}, None),
        ("local", ONE, None),
        ("local", {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ("horovod", HOROVOD, None),
        ("horovod", {}, 1),
        ("collective", TWO, 2),
        ("collective", TWO | MPI, None),  # mpirun as a launcher of TF_CONFIG processes
        ("collective", ONE, None),
        ("collective", {}, 1),
        ("byteps", BYTEPS, None),
        ("mpi", MPI, None),  # asked for; what mpirun starts is otherwise Horovod's
        ("mpi", {"PMI_SIZE": "2"}, None),
        ("mpi", SRUN | {"PMIX_RANK": "1"}, None),
        ("local", SRUN, None),  # one that is asked for in each task
        ("mpi", {}, 1),
    ],
)
def test_possible_choices(engine: str, environ: dict[str, str], workers: int | None) -> None:
    name, _ = choose(engine, environ, workers)
    assert name == ("local" if engine == "auto" else engine)


@pytest.mark.parametrize(
    ("engine", "environ", "messages"),
    [
        ("nccl", {}, ["engine is 'nccl'", "auto, local, collective, horovod, byteps, mpi"]),
        ("mpi", {}, ["not started by a launcher of mpi", "mpirun -np 2 python -m ooodist.train"]),
        ("mpi", HOROVOD, ["but HOROVOD_SIZE=2 (engine horovod)"]),
        ("horovod", {}, ["engine: horovod", "not started by", "horovodrun -np 2", "engine: local"]),
        ("horovod", TWO, ["engine: horovod", "TF_CONFIG with 2 workers (engine collective)"]),
        ("collective", {}, ["python -m ooodist.launch -np 2 --engine collective"]),
        ("collective", HOROVOD, ["but HOROVOD_SIZE=2 (engine horovod)"]),
        ("byteps", {}, ["not started by a launcher of byteps", "--engine byteps"]),
        ("auto", SRUN, ["one of 4", "srun (SLURM_STEP_NUM_TASKS)", "-m ooodist.launcher.slurm"]),
        ("horovod", SRUN, ["not started by", "-m ooodist.launcher.slurm --engine horovod"]),
        ("auto", TORCHRUN, ["one of 4", "torchrun (WORLD_SIZE)", "launch -np 4 --engine coll"]),
        ("local", {"OOODIST_ENGINE": "local"} | MPI, ["one of 4 of engine horovod"]),
        ("local", HOROVOD, ["one of 2 of engine horovod", "train on its own"]),
        ("local", MPI, ["one of 4 of engine horovod (OMPI_COMM_WORLD_SIZE=4)"]),
        ("local", TWO, ["one of 2 of engine collective"]),
        ("local", BYTEPS, ["one of 2 of engine byteps"]),
        ("auto", BYTEPS | {"DMLC_ROLE": "server"}, ["DMLC_ROLE=server", "import byteps.server"]),
        ("local", BYTEPS | {"BYTEPS_LOCAL_SIZE": "4"}, ["one of 8 of", "BYTEPS_LOCAL_SIZE=4"]),
        ("auto", {"OOODIST_ENGINE": "horovod"}, ["OOODIST_ENGINE=horovod, but this process"]),
    ],
)
def test_contradictions(engine: str, environ: dict[str, str], messages: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        choose(engine, environ, None)
    for message in messages:
        assert message in str(raised.value)


@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps", "mpi"])
def test_the_way_out_starts_as_many_as_are_wanted(engine: str) -> None:
    with pytest.raises(UserError, match="-np 4 "):
        choose(engine, {}, None, 4)


def test_byteps_alone_needs_its_launcher() -> None:
    with pytest.raises(UserError, match="not started by a launcher of byteps"):
        choose("byteps", {}, 1)


def test_sizes() -> None:
    check_size("horovod", 2, {"OOODIST_SIZE": "2"}, 2)
    with pytest.raises(UserError, match="workers is 4, but engine horovod runs 2: start 4"):
        check_size("horovod", 2, {}, 4)
    with pytest.raises(UserError, match=r"started 3 workers \(OOODIST_SIZE\), but engine local se"):
        check_size("local", 1, {"OOODIST_SIZE": "3"}, None)


def test_init_of_the_wrong_engine_or_size() -> None:
    with pytest.raises(UserError, match="engine is 'gloo'"):
        engines.init("gloo")
    with pytest.raises(UserError, match="workers is 2, but engine local runs 1"):
        engines.init(workers=2)
    with pytest.raises(UserError, match="no engine is in use"):
        engines.current()


@pytest.mark.parametrize(
    ("engine", "environ", "module"),
    [("horovod", HOROVOD, "horovod.tensorflow"), ("byteps", BYTEPS, "byteps.tensorflow")],
)
def test_engine_that_is_not_built(
    monkeypatch: pytest.MonkeyPatch, engine: str, environ: dict[str, str], module: str
) -> None:
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"ooodist.engines.{engine}", raising=False)
    with pytest.raises(UserError, match=f"engine {engine} is not built here .*No module|import of"):
        engines.init()
    with pytest.raises(UserError, match=rf"run ooodist-engines {engine}"):
        engines.init(engine)


def test_collective_after_tensorflow_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    tf.ones([1])
    monkeypatch.setenv("TF_CONFIG", TWO["TF_CONFIG"])
    with pytest.raises(UserError, match=r"ooodist.init was called after TensorFlow had started"):
        engines.init("collective", timeout=20)


def test_a_contradiction_costs_no_tensorflow() -> None:
    program = (
        "import sys, ooodist.engines as e; assert 'tensorflow' not in sys.modules; e.init('byteps')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "UserError: engine: byteps, but this process was not started by" in done.stderr


def test_init_says_which_engine_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ooodist"):
        engines.init()
    assert caplog.messages == [
        "engine local (no launcher, such as ooodist-launch, has set its variables): rank 0 of 1",
    ]
