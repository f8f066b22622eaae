"""Starting a job of real processes from a test."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.fork_server import fast_python

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("collective", "horovod", "byteps")


def needs_built(engine: str) -> None:
    """Skips the test, saying what to run, if the engine's library is not installed."""
    if engine in ("horovod", "byteps") and importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not built here: run ooodist-engines {engine}")


def run_job(
    engine: str,
    size: int,
    script: Path,
    *arguments: str,
    seconds: float = 300,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` on ``size`` workers through launch/local.py, with these variables besides.

    Returns:
        the finished launcher, with the output of all workers.
    """
    command = [sys.executable, str(ROOT / "launch/local.py"), "-np", str(size), "--engine", engine]
    return subprocess.run(
        [*command, "--", fast_python(), str(script), *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **(variables or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


def run_checks(engine: str, worker: Path, of_each: Sequence[str], seconds: float = 300) -> str:
    """Runs the checks of a worker with two workers, all with collectives, else those ``of_each``.

    Returns:
        what they printed; each check that holds prints its name.
    """
    needs_built(engine)
    names = ["all"] if engine == "collective" else of_each
    job = run_job(engine, 2, worker, *names, seconds=seconds)
    assert job.returncode == 0, job.stdout[-6000:]
    passed = re.findall(r"passed (\w+)", job.stdout)
    assert set(passed) >= set(of_each)
    if engine == "collective":
        assert len(passed) == worker.read_text().count("@check\n")
    return job.stdout
