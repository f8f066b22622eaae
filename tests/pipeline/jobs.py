"""Starts jobs over MPI for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import fast_python
from tests.jobs import ROOT

HERE = Path(__file__).parent
VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def checks_in(worker: str | Path) -> list[str]:
    """Returns the names of the checks of a worker, a path from this folder, without running it."""
    lines = (HERE / worker).read_text(encoding="utf-8").splitlines()
    return [
        line.removeprefix("def ").partition("(")[0]
        for line in lines
        if line.startswith("def check_")
    ]


def start_mpi(size: int, *arguments: object, python: str | None = None) -> subprocess.Popen[str]:
    """Starts Python with these arguments on so many ranks; what they print comes together.

    ``python``: in place of ``fast_python()``.
    """
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: run ooodist-engines mpi")
    command = ["mpirun", "-np", str(size), "--oversubscribe", python or fast_python()]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | VARIABLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_python(
    size: int, *arguments: object, seconds: float, python: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments on so many ranks, to its end."""
    job = start_mpi(size, *arguments, python=python)
    try:
        output, _ = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        job.kill()
        output, _ = job.communicate()
        pytest.fail(f"not ready after {seconds} s: {output}")
    finally:
        job.kill()  # also where pytest's own limit ends the test
    return subprocess.CompletedProcess(job.args, job.returncode, output)


def run_mpi(
    size: int, script: str, *arguments: object, seconds: float = 180, python: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder on so many ranks."""
    return run_python(size, HERE / script, *arguments, seconds=seconds, python=python)
