"""Starts jobs of real engines for the tests."""

import os
import subprocess
import sys
from pathlib import Path

from tests.fork_server import fast_python
from tests.jobs import ROOT, needs_built

HERE = Path(__file__).parent
LAUNCHER = ROOT / "launch" / "local.py"
SEES_TESTS = {"PYTHONPATH": str(ROOT)}  # scripts of this folder import what all tests share


def run_job(
    engine: str, num_workers: int, command: list[str], *options: str, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs ``command`` in each worker; the launcher ends all of them after ``seconds``."""
    needs_built(engine)
    launch = [sys.executable, str(LAUNCHER), "-np", str(num_workers), "--engine", engine]
    return subprocess.run(
        [*launch, "--timeout", str(seconds), *options, "--", *command],
        env=os.environ | SEES_TESTS,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )


def script(name: str, *arguments: object) -> list[str]:
    """The command that runs a script of this folder."""
    return [fast_python(), str(HERE / name), *map(str, arguments)]
