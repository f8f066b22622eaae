"""Starts jobs of real engines for the tests."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAUNCHER = HERE.parent.parent / "launch" / "local.py"
BUILT_ENGINES = ("horovod", "byteps")


def need(engine: str) -> None:
    """Skips the test if the engine is not installed here."""
    if engine in BUILT_ENGINES and importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: run scripts/install_engines.sh {engine}")


def run_job(
    engine: str, num_workers: int, command: list[str], *options: str, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs ``command`` in each worker; the launcher ends all of them after ``seconds``."""
    need(engine)
    launch = [sys.executable, str(LAUNCHER), "-np", str(num_workers), "--engine", engine]
    return subprocess.run(
        [*launch, "--timeout", str(seconds), *options, "--", *command],
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )


def script(name: str, *arguments: object) -> list[str]:
    """The command that runs a script of this folder."""
    return [sys.executable, str(HERE / name), *map(str, arguments)]
