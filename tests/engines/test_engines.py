"""Every engine does the same: the checks of worker.py, and ways to end."""

import os
import shlex
import shutil
import subprocess

import pytest

from tests.engines.jobs import SEES_TESTS, run_job, script
from tests.jobs import needs_built
from tests.pipeline.jobs import run_python


@pytest.mark.parametrize(
    ("engine", "num_workers", "options"),
    [
        ("local", 1, []),
        ("collective", 3, []),
        ("horovod", 3, []),
        ("byteps", 3, ["--servers", "2"]),  # jobs of two are all over tests/job
    ],
)
def test_checks(engine: str, num_workers: int, options: list[str]) -> None:
    job = run_job(engine, num_workers, script("worker.py", engine, num_workers), *options)
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("held: check_") == 22


def test_mpirun_is_detected() -> None:
    needs_built("horovod")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: run ooodist-engines horovod")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    job = subprocess.run(
        [
            "mpirun",
            "-np",
            "2",
            "--oversubscribe",
            *script("worker.py", "horovod", 2, "check_places", "check_nobody_else_reaches_it"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | SEES_TESTS | root | {"OMPI_MCA_mpi_yield_when_idle": "1"},
        timeout=120,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("held: check_") == 2


@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps"])
@pytest.mark.parametrize(("how", "last"), [("cleanly", 0), ("without_shutdown", 1)])
def test_good_end(engine: str, how: str, last: int) -> None:
    """The process ends with 0, whoever is last, also if it forgets to shut down."""
    job = run_job(engine, 2, script("ending.py", how, last))
    assert job.returncode == 0, job.stdout + job.stderr
    assert "terminate called" not in job.stderr


@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps"])
@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("raise", 1, "ValueError: a mistake in the program"),
        ("abort", 5, "worker 1 exited with code 5"),
    ],
)
def test_bad_end(engine: str, how: str, code: int, text: str) -> None:
    """A rank that fails ends, although the others go on exchanging."""
    job = run_job(engine, 2, script("ending.py", how, 1))
    assert job.returncode == code, job.stdout + job.stderr
    assert text in job.stderr


def test_mpi_rank_that_fails_while_others_wait() -> None:
    program = (
        "import ooodist; mpi = ooodist.init('mpi'); assert not mpi.rank, 'mine'; mpi.barrier()"
    )
    job = run_python(2, "-c", program, seconds=60)
    assert job.returncode == 1, job.stdout
    assert "AssertionError: mine" in job.stdout


def test_byteps_rank_that_exits_while_others_go_on() -> None:
    job = run_job("byteps", 2, script("ending.py", "exit", 1))
    assert job.returncode == 1, job.stdout + job.stderr
    assert "[1] ooodist: error: engine byteps: not all workers ended within" in job.stderr


@pytest.mark.parametrize(("engine", "killed"), [("collective", 0), ("horovod", 1)])
def test_death_of_another_rank_is_an_error(engine: str, killed: int) -> None:
    """The engine itself notices: the shell hides the death from the launcher for a while."""
    python = shlex.join(script("ending.py", "kill", killed))
    hidden = f"{python}; code=$?; [ $code = 137 ] && sleep 30; exit $code"
    job = run_job(engine, 3, ["sh", "-c", hidden])
    assert job.returncode == 1, job.stdout + job.stderr
    assert "the exchange failed after" in job.stdout


@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps"])
def test_rank_that_does_not_come(engine: str) -> None:
    job = run_job(engine, 2, script("ending.py", "absent", 1))
    assert job.returncode == 1, job.stdout + job.stderr
    assert "did not come within 3 s" in job.stderr or "_connect_all_workers" in job.stderr
