"""Starts jobs over MPI for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import ROOT

HERE = Path(__file__).parent


def run_mpi(
    size: int, script: str, *arguments: object, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder on so many ranks; what they print comes together."""
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: run scripts/install_engines.sh mpi")
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = ["mpirun", "-np", str(size), "--oversubscribe", sys.executable, str(HERE / script)]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
